// Scripts of all pages. Pages can be read and used without them.
"use strict";
(() => {
  const root = document.documentElement;
  root.classList.add("scripted");

  // Times are sent in UTC and shown in the local time zone. The title keeps UTC.
  const formats = {
    full: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", year: "numeric", hour: "2-digit", minute: "2-digit", second: "2-digit", timeZoneName: "short" }),
    short: new Intl.DateTimeFormat(undefined, { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit", timeZoneName: "short" }),
    second: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit" }),
    clock: new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", second: "2-digit", fractionalSecondDigits: 1 }),
  };
  // countDown shows how long it is until a time.
  const countDown = (t) => {
    const left = Math.ceil((new Date(t.dateTime) - Date.now()) / 1000);
    t.textContent = left <= 0 ? "now" : left < 120 ? `in ${left} s` : left < 7200 ? `in ${Math.round(left / 60)} min` : `in ${Math.round(left / 3600)} h`;
  };
  setInterval(() => document.querySelectorAll("time[data-time=in]").forEach(countDown), 1000);
  const localTimes = (within) => {
    for (const t of within.querySelectorAll("time[data-time]")) {
      if (t.dataset.time === "in") countDown(t);
      const format = formats[t.dataset.time];
      if (format) t.textContent = format.format(new Date(t.dateTime));
    }
  };

  // Live pages say so when their connection is lost. A hidden tab closes its
  // connection: browsers allow only six to one server.
  const live = () => document.querySelector("[sse-connect]");
  const sourceOf = (element) => element?.["htmx-internal-data"]?.sseEventSource;
  const showLost = (lost) => { const n = document.getElementById("lost"); if (n) n.hidden = !lost; };
  let asleep = false, sleeping = 0, losing = 0;
  const onLost = (event) => {
    if (asleep) return;
    clearTimeout(losing);
    losing = setTimeout(() => showLost(true), 1500); // ignore short gaps
    if (event.detail?.source?.readyState === EventSource.CLOSED) {
      fetch(location.href, { redirect: "manual" }).then((r) => { if (r.type === "opaqueredirect") location.reload(); }, () => {});
    }
  };
  const onVisible = () => {
    clearTimeout(sleeping);
    const source = sourceOf(live());
    if (!source) return;
    if (document.hidden) {
      sleeping = setTimeout(() => { asleep = true; source.close(); }, 20000);
    } else if (asleep) {
      source.onerror(new Event("error")); // the extension reconnects
      asleep = false;
    }
  };

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

  // The preview is reloaded shortly after the last change.
  let previewing = 0;
  const preview = (form, wait) => {
    clearTimeout(previewing);
    previewing = setTimeout(() => form.requestSubmit(form.querySelector("[data-preview]")), wait);
  };

  document.addEventListener("DOMContentLoaded", () => {
    localTimes(document);
    document.body.addEventListener("htmx:sseError", onLost);
    document.body.addEventListener("htmx:sseOpen", () => { clearTimeout(losing); showLost(false); });
    document.body.addEventListener("htmx:sseMessage", (e) => localTimes(e.target));
    document.body.addEventListener("htmx:afterSwap", (e) => {
      const target = e.detail.target ?? e.target;
      localTimes(target);
      if (target.id === "ask") target.showModal();
    });
    document.addEventListener("visibilitychange", onVisible);

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
    if (form) {
      form.addEventListener("input", (e) => { if (e.target.type !== "file") preview(form, 400); });
      preview(form, 0);
      let sent = 0; // ignore a double click
      form.addEventListener("submit", (e) => {
        if (e.submitter?.matches("[data-preview]")) return;
        if (Date.now() - sent < 3000) e.preventDefault();
        else sent = Date.now();
      });
    }
    for (const input of document.querySelectorAll("input[data-into]")) {
      input.addEventListener("change", async () => {
        if (!input.files.length) return;
        const into = document.getElementById(input.dataset.into);
        into.value = await input.files[0].text();
        input.value = "";
        into.dispatchEvent(new Event("input", { bubbles: true }));
      });
    }
  });
})();
