// The HTML of a message as rich text: an element with data-rich has a textarea with the HTML, which stays the truth, and
// the parts of the editor, hidden until this script starts. Rich text has paragraphs, headings, bold, italic, links and
// lists. HTML that it cannot write byte for byte opens as HTML, and changes only if the user converts it.
// Placeholders like {{name}} and Liquid tags are text here, and are written exactly as they are.
"use strict";
(() => {
  const kept = new Set(["P", "H1", "H2", "H3", "UL", "OL", "LI", "B", "I", "A", "BR"]);
  const alike = { DIV: "P", STRONG: "B", EM: "I", H4: "H3", H5: "H3", H6: "H3", BLOCKQUOTE: "P", PRE: "P" };
  const dropped = "script, style, head, title, template, iframe, object, svg, math, form, textarea, select, button, img, video, audio";
  const safe = /^(https?:|mailto:|tel:|#|\{\{|\{%)/i;

  // clean returns what rich text keeps of some HTML: of a source, or of what was pasted.
  const clean = (html) => {
    const from = document.createElement("template"), out = document.createDocumentFragment();
    // It runs and loads nothing. The policy of the page would report styles and handlers, though they have no effect.
    from.innerHTML = html.replace(/<[a-z][^>]*>/gi, (t) => t.replace(/\s(?=(style|on[a-z]+)\s*=)/gi, " data-"));
    for (const e of from.content.querySelectorAll(dropped)) e.remove();
    const copy = (node, into) => {
      for (const child of node.childNodes) {
        if (child.nodeType === Node.TEXT_NODE) {
          const text = child.data.replace(/[ \t\r\n]+/g, " ");
          if (!/^[UO]L$/.test(into.nodeName)) into.append(text);
          else if (text.trim()) into.append(Object.assign(document.createElement("LI"), { textContent: text })); // a list has only entries
        }
        if (child.nodeType !== Node.ELEMENT_NODE) continue;
        const name = alike[child.nodeName] ?? child.nodeName, href = child.getAttribute("href");
        if (!kept.has(name) || name === "A" && !safe.test(href ?? "")) {
          copy(child, into);
          continue;
        }
        const e = document.createElement(name);
        if (name === "A") e.setAttribute("href", href);
        copy(child, e);
        into.append(e);
      }
    };
    copy(from.content, out);
    return out;
  };

  // tag matches what is between the braces of a placeholder or a Liquid tag, in escaped HTML.
  const tag = /\{\{[^<]*?\}\}|\{%[^<]*?%\}/g;
  const onlyTags = /^\s*(\{%[^<]*?%\}\s*)+$/;
  const signs = { "&": "&amp;", "<": "&lt;", ">": "&gt;", "\u00a0": "&nbsp;" };
  const escape = (text) => text.replace(/[&<>\u00a0]/g, (c) => signs[c]);
  const unescape = (text) => text.replace(/&nbsp;/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&");
  const isBlock = (node) => /^(P|DIV|H[1-6]|UL|OL|LI)$/.test(node.nodeName);
  const textOf = (node) => node.textContent.replace(/[\u200b\s]/g, "");

  // Writer writes rich text as HTML. Bold and italic have the tags of the source.
  class Writer {
    constructor(source) {
      this.names = { B: /<strong\b/i.test(source) ? "strong" : "b", I: /<em\b/i.test(source) ? "em" : "i" };
    }
    // html leaves out the empty paragraphs at the end, which the editor adds so that the cursor can go there.
    html(root) {
      return this.blocks(root).replace(tag, unescape).replace(/((^|\n)<p><br><\/p>)+$/, "");
    }
    blocks(node) {
      const out = [];
      let line = "";
      const flush = () => { if (line.trim()) out.push(line); line = ""; };
      for (const child of node.childNodes) {
        if (!isBlock(child)) line += this.inline(child);
        else {
          flush();
          out.push(this.block(child));
        }
      }
      flush();
      return out.join("\n");
    }
    block(node) {
      const name = node.nodeName === "DIV" ? "p" : node.nodeName.toLowerCase();
      if (name === "ul" || name === "ol") return `<${name}>\n${this.blocks(node)}\n</${name}>`;
      if (name === "li") return `<li>${this.item(node)}</li>`;
      const text = this.inside(node);
      return name === "p" && onlyTags.test(text) ? text : `<${name}>${text || "<br>"}</${name}>`;
    }
    // item writes what is in an entry of a list. The paragraphs that the editor has there are not written.
    item(node) {
      let out = "";
      for (const child of node.childNodes) {
        if (!isBlock(child)) out += this.inline(child);
        else if (/^[UO]L$/.test(child.nodeName)) out += `\n${this.block(child)}\n`;
        else out += (out ? "<br>" : "") + this.inside(child);
      }
      return out.replace(/<br>$/, "");
    }
    inside(node) {
      return [...node.childNodes].map((child) => (isBlock(child) ? this.inside(child) : this.inline(child))).join("").replace(/<br>$/, "");
    }
    inline(node) {
      if (node.nodeType === Node.TEXT_NODE) return escape(node.data.replaceAll("\u200b", ""));
      if (node.nodeType !== Node.ELEMENT_NODE) return "";
      if (node.nodeName === "BR") return "<br>";
      const name = this.names[node.nodeName] ?? (node.nodeName === "A" ? "a" : ""), text = this.inside(node);
      if (!name || !text) return text;
      return name === "a" ? `<a href="${escape(node.getAttribute("href")).replaceAll('"', "&quot;")}">${text}</a>` : `<${name}>${text}</${name}>`;
    }
  }

  // plain returns rich text as plain text.
  const plain = (node) => {
    let out = "";
    for (const child of node.childNodes) {
      const name = child.nodeName;
      if (child.nodeType === Node.TEXT_NODE) out += child.data.replaceAll("\u200b", "").replaceAll("\u00a0", " ");
      else if (name === "BR") out += "\n";
      else if (name === "A") {
        const href = child.getAttribute("href").replace(/^mailto:/, ""), text = plain(child);
        out += text.trim() === href ? text : `${text} (${href})`;
      } else if (name === "UL" || name === "OL") {
        out += [...child.children].map((e, i) => `${name === "UL" ? "-" : `${i + 1}.`} ${plain(e).trim()}`).join("\n") + "\n\n";
      } else if (isBlock(child)) out += plain(child).trim() + "\n\n";
      else out += plain(child);
    }
    return out;
  };
  const plainOf = (root) => plain(root).trim().replace(/\n{3,}/g, "\n\n");

  // Line breaks between blocks mean nothing.
  const tidy = (html) => html.trim().replace(/\s*(<\/?(?:p|h[1-3]|ul|ol|li)>)\s*/gi, "$1").replace(/(%\})\s*\n\s*/g, "$1").replace(/\s*\n\s*(\{%)/g, "$1");

  // reason says what of some HTML rich text cannot keep.
  const reason = (html) => {
    const found = [
      [/<table\b/i, "tables"], [/<style\b|\sstyle=/i, "styles"], [/<img\b/i, "images"], [/<(!doctype|html|head|body)\b/i, "whole pages"], [/<!--/, "comments"],
    ].filter(([pattern]) => pattern.test(html)).map(([, word]) => word);
    const what = found.length ? found.join(" and ").replace(/ and (?=.* and )/g, ", ") : "everything in it exactly as it is";
    return `This is shown as HTML and not changed, because rich text cannot keep ${what}.`;
  };

  const foreign = ["Shift-5", "Shift-6", "Shift-7", "d", "[", "]"]; // keys of what rich text does not have
  const chosen = "editor"; // of this tab: html if the user switched to it

  class RichText {
    constructor(field) {
      this.field = field;
      this.source = field.querySelector("textarea");
      this.text = this.part("text");
      this.derived = null; // the plain text that was written from this
      this.writer = new Writer("");
      this.editor = new Squire(this.text, { blockTag: "P", addLinks: false, sanitizeToDOMFragment: clean });
      for (const key of ["Tab", "Shift-Tab", "PageUp", "PageDown"]) this.editor.setKeyHandler(key, null); // those of the page
      for (const key of foreign) for (const held of ["Ctrl", "Meta"]) this.editor.setKeyHandler(`${held}-${key}`, null);
      for (const held of ["Ctrl", "Meta"]) this.editor.setKeyHandler(`${held}-u`, (_, e) => e.preventDefault());
      this.editor.addEventListener("input", () => this.write());
      for (const type of ["pathChange", "select"]) this.editor.addEventListener(type, () => this.mark());
      // What happens in the editor is told as a change of the HTML.
      for (const type of ["input", "change"]) this.part("editor").addEventListener(type, (e) => e.stopPropagation());
      this.text.addEventListener("blur", () => this.tell("change"));
      this.source.addEventListener("input", () => { if (!this.telling) this.open(); });
      this.source.addEventListener("change", () => { if (!this.rich && sessionStorage.getItem(chosen) !== "html") this.explain(); });
      field.querySelector("label").addEventListener("click", () => { if (this.rich) this.editor.focus(); });
      for (const b of this.part("switch").children) b.addEventListener("click", () => this.choose(b.dataset.mode));
      this.part("convert").addEventListener("click", () => this.convert());
      this.startTools();
      this.startPlain();
      this.part("switch").hidden = false;
      const byChoice = sessionStorage.getItem(chosen) === "html";
      this.show(!byChoice && this.load());
      if (!byChoice) this.explain();
    }
    part(name) { return this.field.querySelector(`[data-rich-${name}]`); }

    // load fills the editor with the HTML, and reports whether it would write the same again.
    load() {
      this.writer = new Writer(this.source.value);
      this.editor.setHTML(this.source.value);
      return tidy(this.writer.html(this.text)) === tidy(this.source.value);
    }
    // open shows HTML that was changed elsewhere.
    open() {
      if (!this.rich) return;
      const same = this.load();
      this.show(same);
      if (!same) this.explain();
    }
    show(rich) {
      this.rich = rich;
      this.part("editor").hidden = !rich;
      this.source.hidden = rich;
      for (const b of this.part("switch").children) b.setAttribute("aria-pressed", (b.dataset.mode === "rich") === rich);
      this.showPlain();
    }
    // explain says why HTML is not shown as rich text, if that is not by choice.
    explain() {
      const why = this.rich || this.load() ? "" : reason(this.source.value);
      this.part("why").hidden = !why;
      this.part("why").querySelector("span").textContent = why;
    }
    choose(mode) {
      sessionStorage.setItem(chosen, mode);
      const rich = mode === "rich" && (this.rich || this.load());
      this.show(rich);
      if (mode === "rich") this.explain();
      else this.part("why").hidden = true;
      if (rich) this.editor.focus();
      else if (mode === "rich") this.part("convert").focus();
      else this.source.focus();
    }
    // convert changes HTML into what rich text keeps of it.
    convert() {
      sessionStorage.setItem(chosen, "rich");
      this.load();
      this.show(true);
      this.explain();
      this.write();
      this.editor.focus();
    }
    write() {
      this.source.value = this.writer.html(this.text);
      this.tell("input");
      this.mark();
      const area = document.getElementById("text");
      if (this.derived !== null && area.value === this.derived) this.fillPlain(area);
      this.showPlain();
    }
    tell(type) {
      this.telling = true;
      this.source.dispatchEvent(new Event(type, { bubbles: true }));
      this.telling = false;
    }

    // The tools are one stop of the Tab key; arrow keys lead from one to the next.
    startTools() {
      const tools = this.part("tools"), stops = [...tools.querySelectorAll("button, select")];
      this.tools = Object.fromEntries(stops.map((e) => [e.dataset.tool, e]));
      stops.forEach((e, i) => { e.tabIndex = i ? -1 : 0; });
      tools.addEventListener("keydown", (e) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[e.key], at = stops.indexOf(document.activeElement);
        if (!step || at < 0) return;
        e.preventDefault();
        stops[(at + step + stops.length) % stops.length].focus();
      });
      tools.addEventListener("focusin", (e) => { for (const stop of stops) stop.tabIndex = stop === e.target ? 0 : -1; });
      // A press does not take the cursor from the text.
      tools.addEventListener("mousedown", (e) => { if (e.target.closest("button")) e.preventDefault(); });
      tools.addEventListener("click", (e) => {
        const name = e.target.closest("button")?.dataset.tool;
        if (name) this[name]();
      });
      this.tools.names.addEventListener("mousedown", () => this.listNames());
      new MutationObserver(() => this.listNames()).observe(document.getElementById("columns"), { childList: true });
      this.tools.names.addEventListener("focus", () => this.listNames());
      this.tools.names.addEventListener("change", () => { this.named = true; });
      this.listNames();
      const link = this.part("link"), input = link.querySelector("input");
      link.addEventListener("click", (e) => { if (e.target.closest("button")) this.endLink(e.target.closest("button").value); });
      input.addEventListener("keydown", (e) => {
        if (e.key !== "Enter" && e.key !== "Escape") return;
        e.preventDefault();
        this.endLink(e.key === "Enter" ? "set" : "");
      });
    }
    toggle(name, on, off) {
      if (this.editor.hasFormat(name)) this.editor[off]();
      else this.editor[on]();
      this.editor.focus();
      this.mark();
    }
    bold() { this.toggle("B", "bold", "removeBold"); }
    italic() { this.toggle("I", "italic", "removeItalic"); }
    list() { this.toggle("UL", "makeUnorderedList", "removeList"); }
    numbers() { this.toggle("OL", "makeOrderedList", "removeList"); }
    heading() {
      const to = this.editor.hasFormat("H2") ? "P" : "H2";
      this.editor.modifyBlocks((part) => {
        for (const old of part.querySelectorAll("p, div, h1, h2, h3")) {
          if (old.closest("li")) continue;
          const block = document.createElement(to);
          block.append(...old.childNodes);
          old.replaceWith(block);
        }
        return part;
      });
      this.editor.focus();
      this.mark();
    }
    link() {
      const input = this.part("link").querySelector("input");
      this.at = this.editor.getSelection();
      const from = this.at.startContainer;
      input.value = (from.nodeType === Node.ELEMENT_NODE ? from : from.parentElement).closest("a")?.getAttribute("href") ?? "";
      this.part("link").hidden = false;
      input.focus();
    }
    endLink(what) {
      const input = this.part("link").querySelector("input");
      let to = input.value.trim();
      if (to && !safe.test(to)) to = to.includes("@") ? `mailto:${to}` : `https://${to}`;
      this.part("link").hidden = true;
      this.editor.focus().setSelection(this.at);
      if (what === "remove" || what === "set" && !to) this.editor.removeLink();
      else if (what === "set") {
        const after = this.editor.makeLink(to).getSelection();
        after.collapse(false);
        this.editor.setSelection(after);
      }
      this.editor.focus();
      this.mark();
    }
    // listNames offers the placeholders that recipients have: by their columns, the values for all, and their category.
    listNames() {
      const names = [...document.querySelectorAll("#columns select")].map((e) => e.value || "").filter(Boolean);
      let shared = {};
      try { shared = JSON.parse(document.getElementById("vars").value || "{}"); } catch { /* not yet valid */ }
      if (document.getElementById("category").value.trim()) names.push("unsubscribe_url");
      const all = [...new Set([...names.filter((name) => name !== "email" && name !== "name"), ...Object.keys(shared ?? {}), "email", "name"])], select = this.tools.names;
      if (all.join() === [...select.options].map((o) => o.value).join()) return;
      const was = select.value;
      select.replaceChildren(...all.map((name) => new Option(name, name)));
      if (this.named && all.includes(was)) select.value = was;
    }
    insert() {
      this.listNames();
      this.editor.focus();
      document.execCommand("insertText", false, `{{${this.tools.names.value}}}`); // as if it was typed
    }
    mark() {
      for (const [tool, name] of [["bold", "B"], ["italic", "I"], ["heading", "H2"], ["list", "UL"], ["numbers", "OL"], ["link", "A"]]) {
        this.tools[tool].setAttribute("aria-pressed", this.editor.hasFormat(name));
      }
    }

    // The plain text follows the rich text once it was written from it, until it is changed itself.
    startPlain() {
      const area = document.getElementById("text");
      this.offer = document.querySelector("[data-from-rich]");
      this.offer.addEventListener("click", () => {
        this.fillPlain(area);
        area.focus();
        this.showPlain();
      });
      area.addEventListener("input", () => this.showPlain());
    }
    showPlain() { this.offer.hidden = !this.rich || document.getElementById("text").value.trim() !== "" || !textOf(this.text); }
    fillPlain(area) {
      area.value = this.derived = plainOf(this.text);
      area.dispatchEvent(new Event("input", { bubbles: true }));
    }
  }

  let open = null;
  document.addEventListener("started", (e) => {
    const field = e.target.querySelector("[data-rich]");
    if (!field || !window.Squire) return;
    open?.editor.destroy();
    open = new RichText(field);
  });
})();
