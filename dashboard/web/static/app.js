// Scripts of all pages. Pages can be read and used without them.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  // The answer to a form is no page to come back to: Back and Reload lead to the form's page.
  if (root.dataset.get) history.replaceState(null, "", root.dataset.get);

  // Times are sent in UTC and shown in the local time zone. The title keeps UTC.
  const short = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" }; // the title has the zone
  const day = { weekday: "short", day: "numeric", month: "short", timeZone: "UTC" };
  const formats = {
    full: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" }),
    short: new Intl.DateTimeFormat(undefined, short),
    second: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
    day: new Intl.DateTimeFormat(undefined, day),
    wall: new Intl.DateTimeFormat(undefined, { weekday: "long", day: "numeric", month: "long", hour: "2-digit", minute: "2-digit", timeZone: "UTC" }),
    year: new Intl.DateTimeFormat(undefined, { ...day, year: "numeric" }),
    clock: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1 }),
  };
  // withYear has the formats of times in other years, if they differ.
  const withYear = {
    short: new Intl.DateTimeFormat(undefined, { ...short, year: "numeric" }),
    day: formats.year,
  };
  // Numbers are sent with narrow spaces between thousands, and shares within texts with one before %,
  // which nothing else has. They are shown in the format of the reader's language, like times and shares.
  const number = new Intl.NumberFormat();
  const percent = new Intl.NumberFormat(undefined, { style: "percent", maximumFractionDigits: 1 });
  const localNumbers = (within) => {
    const texts = document.createTreeWalker(within, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
      const node = texts.currentNode;
      const local = node.data.replace(/\b([A-Z]{3})\u00a0([\d\u202f]+\.(\d+))/g, (text, currency, amount, digits) =>
        new Intl.NumberFormat(undefined, { style: "currency", currency, currencyDisplay: "code", minimumFractionDigits: digits.length }).format(amount.replaceAll("\u202f", "")))
        .replace(/\d{1,3}(?:\u202f\d{3})+/g, (n) => number.format(n.replaceAll("\u202f", "")))
        .replace(/([\d.]+)\u202f%/g, (text, share) => percent.format(share / 100));
      if (local !== node.data) node.data = local;
    }
    for (const e of within.querySelectorAll("[data-share]")) {
      e.textContent = e.textContent.replace(/[\d.]+ %/, (share) => percent.format(parseFloat(share) / 100));
    }
  };

  // countDown shows how long it is until a time.
  const countDown = (t) => {
    const left = Math.ceil((new Date(t.dateTime) - Date.now()) / 1000);
    t.textContent = left <= 0 ? "now" : left < 120 ? `in ${left} s` : left < 7200 ? `in ${Math.round(left / 60)} min` : `in ${Math.round(left / 3600)} h`;
  };
  setInterval(() => document.querySelectorAll("time[data-time=in]").forEach(countDown), 1000);
  const localize = (within) => {
    localNumbers(within);
    for (const t of within.querySelectorAll("time[data-time]")) {
      if (t.dataset.time === "in") countDown(t);
      const at = new Date(t.dateTime), other = at.getUTCFullYear() !== new Date().getUTCFullYear();
      const format = (other && withYear[t.dataset.time]) || formats[t.dataset.time];
      if (format) t.textContent = format.format(at);
    }
  };

  // Live is an EventSource for htmx that reconnects by itself and says when the connection
  // is lost. The server sends a beat every second, so that a connection that only hangs is
  // noticed, too. A hidden tab closes its connection: browsers allow only six to one server.
  const quiet = 2500; // milliseconds without a beat after which the connection is lost
  class Live {
    listeners = [];
    constructor(url) {
      this.url = url;
      this.connect();
      this.watching = setInterval(() => this.watch(), 250);
      document.addEventListener("visibilitychange", () => this.onVisible());
    }
    connect() {
      this.source?.close();
      this.failed = false;
      this.tried = Date.now();
      this.heard ??= this.tried;
      const source = this.source = new EventSource(this.url);
      source.onopen = () => this.onopen?.();
      source.onerror = () => {
        source.close();
        this.failed = true;
      };
      source.addEventListener("beat", () => {
        this.heard = Date.now();
        show("lost", false);
        show("ended", false);
      });
      for (const [type, f] of this.listeners) source.addEventListener(type, f);
    }
    watch() {
      if (document.hidden || this.asleep) return;
      const now = Date.now(), lost = now - this.heard > quiet;
      if (lost && document.getElementById("ended")?.hidden) show("lost", true);
      // An attempt that failed is repeated after a second, one that hangs after a while.
      if (now - this.tried > (this.failed ? 1000 : 8000) && (this.failed || lost)) {
        if (this.failed) askForLogin();
        this.connect();
      }
    }
    onVisible() {
      clearTimeout(this.sleeping);
      if (document.hidden) {
        this.sleeping = setTimeout(() => { this.asleep = true; this.source.close(); }, 20000);
        return;
      }
      this.heard = Date.now(); // timers of hidden tabs are late
      if (this.asleep) this.connect();
      this.asleep = false;
    }
    get readyState() { return this.source.readyState; }
    addEventListener(type, f) {
      this.listeners.push([type, f]);
      this.source.addEventListener(type, f);
    }
    removeEventListener(type, f) {
      this.listeners = this.listeners.filter(([t, g]) => t !== type || g !== f);
      this.source.removeEventListener(type, f);
    }
    close() {
      clearInterval(this.watching);
      this.source.close();
    }
  }
  const show = (id, yes) => { const n = document.getElementById(id); if (n && n.hidden === yes) n.hidden = !yes; };
  // typed tells whether a form has input that a reload would lose.
  const typed = () => [...document.querySelectorAll("input:not([type=hidden]), textarea")].some((e) => e.type === "checkbox" || e.type === "radio" ? e.checked !== e.defaultChecked : e.value !== e.defaultValue);
  // askForLogin leads to the login if the session has ended.
  const askForLogin = async () => {
    try {
      const page = await fetch(location.href, { redirect: "manual" });
      if (page.type !== "opaqueredirect") return;
    } catch {
      return; // the server is away
    }
    if (!typed()) return location.reload();
    show("lost", false);
    show("ended", true);
  };
  if (window.htmx) htmx.createEventSource = (url) => new Live(url);

  const copy = async (button) => {
    const from = button.dataset.copy ? document.getElementById(button.dataset.copy) : button.previousElementSibling;
    const text = from.textContent.trim();
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const range = document.createRange();
      range.selectNodeContents(from);
      getSelection().removeAllRanges();
      getSelection().addRange(range);
      document.execCommand("copy");
    }
    const was = button.textContent;
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = was; }, 1500);
  };

  // The draft of a message outlives the page, in this tab, until the message is sent.
  const draft = `draft ${root.dataset.user}`, sent = `sent ${root.dataset.user}`;
  const fields = (form) => [...form.querySelectorAll("input[id]:not([type=file], [type=checkbox]), select[id], textarea")];
  const keepDraft = (form) => {
    try {
      sessionStorage.setItem(draft, JSON.stringify(Object.fromEntries(fields(form).map((e) => [e.id, e.value]))));
    } catch { /* too large, or not allowed */ }
  };
  const restoreDraft = (form) => {
    sessionStorage.removeItem(sent);
    if ("new" in form.dataset) sessionStorage.removeItem(draft);
    // The time zone has a value from the beginning.
    if (fields(form).some((e) => e.value && e.type !== "hidden" && e.id !== "time_zone")) return false;
    const kept = JSON.parse(sessionStorage.getItem(draft) ?? "{}");
    for (const e of fields(form)) e.value = kept[e.id] ?? e.value;
    return Object.keys(kept).length > 0;
  };
  const dropDraft = () => {
    if (!sessionStorage.getItem(sent) || !location.pathname.startsWith("/batches/")) return;
    sessionStorage.removeItem(draft);
    sessionStorage.removeItem(sent);
  };

  // The draft is also stored at the server, shortly after the last change. The page says that it is saved only while
  // there is no newer change.
  let saving = 0, changes = 0, stored = Promise.resolve();
  const saveSoon = (form) => {
    clearTimeout(saving);
    changes++;
    document.getElementById("draft-state").textContent = "The last change is not saved yet.";
    saving = setTimeout(() => saveDraft(form), 1500);
  };
  const saveDraft = (form, leaving) => { // one after the other: each needs the version of the one before
    clearTimeout(saving);
    saving = 0;
    const store = () => storeDraft(form, leaving);
    stored = leaving ? store() : stored.then(store, store);
  };
  const storeDraft = async (form, leaving) => {
    const seen = changes;
    const data = new FormData(form), state = document.getElementById("draft-state"), problem = document.getElementById("draft-problem");
    for (const name of ["file", "attachments"]) data.delete(name);
    let saved;
    try {
      const answer = await fetch("/drafts", { method: "POST", headers: { Accept: "application/json" }, body: new URLSearchParams(data), keepalive: leaving, signal: AbortSignal.timeout(30000) });
      saved = await answer.json();
    } catch {
      saved = { problem: "It is kept in this tab only, until the server can be reached and you are logged in." };
    }
    problem.replaceChildren();
    if (!saved.problem) {
      form.elements.draft_version.value = saved.version;
      keepDraft(form);
      history.replaceState(null, "", `/compose?draft=${saved.id}`);
      if (seen === changes) state.textContent = `Draft saved at ${formats.second.format(new Date())}, without files.`;
      return;
    }
    state.textContent = "";
    problem.textContent = `The draft is not saved. ${saved.problem} `;
    if (saved.code === "draft_changed" || saved.code === "not_found") {
      const again = document.createElement("button");
      again.type = "button";
      again.className = "button";
      again.textContent = "Save as a new draft";
      again.addEventListener("click", () => {
        form.elements.draft.value = [...crypto.getRandomValues(new Uint8Array(8))].map((n) => n.toString(16).padStart(2, "0")).join("");
        form.elements.draft_version.value = 0;
        saveDraft(form);
      });
      problem.append(again);
    }
  };

  // A form with chosen files is sent without leaving the page, which would lose them if the
  // answer is a question or an error.
  const sendFiles = async (form, button) => {
    const answer = await fetch(button?.formAction ?? form.action, { method: "POST", body: new FormData(form, button) });
    if (answer.redirected) return location.assign(answer.url);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const next = page.querySelector("form[data-live-preview]");
    next?.querySelector("#attachments").replaceWith(form.querySelector("#attachments"));
    page.querySelector("[data-files-kept]")?.remove();
    document.querySelector("main").replaceWith(document.adoptNode(page.querySelector("main")));
    localize(document.querySelector("main"));
    if (next) startForm(next);
    scrollTo(0, 0);
    document.querySelector("[autofocus]")?.focus();
  };

  // A file is in UTF-8, in UTF-16 with a byte order mark, or else taken to be in Windows-1252.
  const decode = (bytes) => {
    const mark = bytes[0] * 256 + bytes[1];
    const encoding = mark === 0xfffe ? "utf-16le" : mark === 0xfeff ? "utf-16be" : "utf-8";
    try {
      return new TextDecoder(encoding, { fatal: true }).decode(bytes);
    } catch {
      return new TextDecoder("windows-1252").decode(bytes);
    }
  };

  // The preview is reloaded shortly after the last change.
  let previewing = 0;
  const preview = (form, wait) => {
    clearTimeout(previewing);
    previewing = setTimeout(() => form.requestSubmit(form.querySelector("[data-preview]")), wait);
  };

  // A part of the form that the server makes from its fields is made again shortly after the last change: the columns of
  // the recipients and their mistakes, the summary of the message, or the fields for the variables of a template.
  const turns = new WeakMap(); // of each part: the timer of its next request, and the number of the last
  const lookAgain = (form, wait, id) => {
    const at = id ? document.getElementById(id) : form.querySelector("[data-part]");
    if (!at) return;
    const turnOf = turns.get(at) ?? { timer: 0, last: 0 };
    turns.set(at, turnOf);
    clearTimeout(turnOf.timer);
    turnOf.timer = setTimeout(async () => {
      const data = new FormData(form), turn = ++turnOf.last;
      for (const name of ["file", "attachments"]) data.delete(name);
      try {
        const answer = await fetch(at.dataset.part, { method: "POST", body: keeps(form) ? data : new URLSearchParams(data) });
        if (!answer.ok || answer.redirected || turn !== turnOf.last) return;
        const part = new DOMParser().parseFromString(await answer.text(), "text/html"), focused = focusIn(at);
        at.replaceChildren(...part.body.childNodes);
        localize(at);
        at.querySelectorAll(choices)[focused]?.focus();
      } catch { /* the next change tries again */ }
    }, wait);
  };
  const choices = "select, input:not([type=hidden])";
  const focusIn = (at) => [...at.querySelectorAll(choices)].indexOf(document.activeElement);

  // The time of a message is said as its sender thinks of it.
  const sayWhen = () => {
    const zone = document.getElementById("time_zone").value.trim(), at = new Date(`${document.getElementById("deliver_at").value}Z`);
    const where = zone.slice(zone.lastIndexOf("/") + 1).replaceAll("_", " ");
    document.getElementById("when").textContent = isNaN(at) || !zone ? "" : `Goes out on ${formats.wall.format(at)} in ${where}.`;
  };

  const keeps = (form) => form.dataset.livePreview !== "only"; // a template has its drafts elsewhere

  // startForm makes the form of a message preview it and keep its draft.
  const startForm = (form) => {
    const zone = form.querySelector("[data-browser-zone] input");
    if (zone) zone.value = zone.defaultValue = Intl.DateTimeFormat().resolvedOptions().timeZone || zone.value;
    const isMessage = keeps(form);
    if (isMessage) {
      const restored = restoreDraft(form);
      sayWhen();
      if (document.getElementById("to").value !== document.getElementById("to").defaultValue) lookAgain(form, 0);
      if (restored) lookAgain(form, 0, "summary");
      form.addEventListener("change", () => lookAgain(form, 100, "summary")); // when a field is left
    }
    form.dispatchEvent(new Event("started", { bubbles: true }));
    form.addEventListener("input", (e) => {
      if (e.target.type === "file") return;
      preview(form, 400);
      if (!isMessage) {
        if (["subject", "html", "text", "category", "language"].includes(e.target.id) || e.target.matches("[name=shown], [name^='languages/']")) lookAgain(form, 600);
        return;
      }
      if (e.target.id === "to" || e.target.closest("#columns")) lookAgain(form, 400);
      sayWhen();
      keepDraft(form);
      saveSoon(form);
    });
    preview(form, 0);
    let pressed = 0; // ignore a double click
    form.addEventListener("submit", (e) => {
      if (e.submitter?.matches("[data-preview]")) { // which needs no files
        const frame = document.querySelector("iframe[name=preview]"); // a new one adds nothing to the history
        frame.replaceWith(frame.cloneNode());
        const files = form.querySelector("#attachments");
        if (files) {
          files.disabled = true;
          setTimeout(() => { files.disabled = false; });
        }
        return;
      }
      if (e.submitter?.matches("[data-save]")) {
        e.preventDefault();
        saveDraft(form);
        return;
      }
      if (Date.now() - pressed < 3000) {
        e.preventDefault();
        return;
      }
      pressed = Date.now();
      clearTimeout(saving);
      saving = 0;
      if (isMessage) keepDraft(form);
      if (e.submitter?.value === "send") sessionStorage.setItem(sent, "yes");
      if (form.querySelector("#attachments")?.files.length) {
        e.preventDefault();
        sendFiles(form, e.submitter);
      }
    });
    if (isMessage) addEventListener("pagehide", () => { if (saving) saveDraft(form, true); }, { once: true });
    for (const input of form.querySelectorAll("input[data-into]")) {
      input.addEventListener("change", async () => {
        if (!input.files.length) return;
        const into = document.getElementById(input.dataset.into);
        into.value = decode(new Uint8Array(await input.files[0].arrayBuffer()));
        input.value = "";
        for (const type of ["input", "change"]) into.dispatchEvent(new Event(type, { bubbles: true }));
      });
    }
  };

  document.addEventListener("DOMContentLoaded", () => {
    localize(document.body);
    // What was unfolded in a live part of a page stays so.
    let unfolded = [];
    const folds = (part) => [...part.querySelectorAll?.("details") ?? []].map((d, i) => [`${d.closest("[id]")?.id} ${i}`, d]);
    document.body.addEventListener("htmx:sseBeforeMessage", (e) => { unfolded = folds(e.target).filter(([, d]) => d.open).map(([key]) => key); });
    document.body.addEventListener("htmx:sseMessage", (e) => {
      localize(e.target);
      for (const [key, d] of folds(e.target)) if (unfolded.includes(key)) d.open = true;
    });
    document.body.addEventListener("htmx:afterSwap", (e) => {
      const target = e.detail.target ?? e.target;
      localize(target);
      if (target.id === "ask") target.showModal();
    });
    // A live list is not replaced while entries of it are selected.
    document.body.addEventListener("htmx:sseBeforeMessage", (e) => {
      if (e.target.querySelector?.("input[name=id]:checked")) e.preventDefault();
    });
    document.addEventListener("change", (e) => {
      if (!e.target.matches("[data-all]")) return;
      for (const box of e.target.form.querySelectorAll("input[name=id]")) box.checked = e.target.checked;
    });
    // The box of a group chooses all of its boxes, and shows whether they are chosen.
    const boxesOf = (group) => [...group.querySelectorAll(".choices input")];
    document.addEventListener("change", (e) => {
      const group = e.target.closest("[data-group]");
      if (!group) return;
      const all = group.querySelector("legend input"), boxes = boxesOf(group);
      if (e.target === all) for (const box of boxes) box.checked = all.checked;
      const n = boxes.filter((box) => box.checked).length;
      all.checked = n === boxes.length;
      all.indeterminate = n > 0 && n < boxes.length;
    });
    document.addEventListener("keydown", (e) => {
      if (e.key !== "/" || e.ctrlKey || e.metaKey || e.altKey || e.target.closest("input, textarea, select")) return;
      const find = document.getElementById("find");
      if (!find) return;
      e.preventDefault();
      const side = find.closest(".side");
      if (getComputedStyle(find.closest(".side-body")).display === "none") side.querySelector("[data-menu]").click();
      find.focus();
    });

    // The parts of a page are shown by its address; see .tabbed.
    const tabs = document.querySelector("[data-tabs]");
    const markTab = () => {
      const links = [...tabs.children], here = links.find((a) => document.querySelector(a.getAttribute("href"))?.closest(".tab")?.checkVisibility()) ?? links[0];
      for (const a of links) a.toggleAttribute("aria-current", a === here);
      here.setAttribute("aria-current", "true");
    };
    if (tabs) {
      markTab();
      addEventListener("load", markTab); // by then the address has its target
      addEventListener("hashchange", markTab);
    }

    const menu = document.querySelector("[data-menu]");
    menu?.addEventListener("click", () => {
      const open = menu.closest(".side").classList.toggle("open");
      menu.setAttribute("aria-expanded", open);
    });
    document.querySelector("[data-submit-at-once]")?.requestSubmit();

    document.addEventListener("click", (e) => {
      const button = e.target.closest("[data-copy], .copy");
      if (button) copy(button);
      if (e.target.closest("[data-close]")) { e.preventDefault(); document.getElementById("ask").close(); }
    });
    const form = document.querySelector("form[data-live-preview]");
    if (form) startForm(form);
    else dropDraft();
  });
})();
