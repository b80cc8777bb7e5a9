// Finds pages by words. The index is in index.js, which sets pages.
const field = document.getElementById("find"), found = document.getElementById("found");
const root = document.documentElement.dataset.root;
field.addEventListener("input", () => {
  const words = field.value.toLowerCase().split(/\s+/).filter((w) => w.length > 1);
  found.replaceChildren();
  if (words.length === 0) return;
  const hits = pages
    .map((p) => ({ p, score: words.every((w) => p.text.includes(w)) ? words.reduce((n, w) => n + (p.title.toLowerCase().includes(w) ? 1000 : 0) + p.text.split(w).length, 0) : 0 }))
    .filter((h) => h.score > 0)
    .sort((a, b) => b.score - a.score)
    .slice(0, 12);
  for (const { p } of hits) {
    const a = document.createElement("a");
    a.href = root + p.path;
    a.textContent = p.title;
    const li = document.createElement("li");
    li.append(a);
    found.append(li);
  }
  if (hits.length === 0) found.append(Object.assign(document.createElement("li"), { textContent: "No page has all of these words." }));
});
