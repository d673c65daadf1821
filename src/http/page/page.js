// Fetches this page anew every two seconds and takes over what it shows. Without it the page loads itself again.
(() => {
  const shown = document.querySelector("main"), stale = document.getElementById("stale"), said = document.getElementById("said");
  const state = () => shown.querySelector("h1").textContent;
  let at = new Date(), before = state();
  async function refresh() {
    if (document.hidden || String(getSelection())) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      const opened = [...shown.querySelectorAll("details[open]")].map((details) => details.id);
      const focused = document.activeElement?.closest?.("details")?.id;
      shown.replaceChildren(...fresh.querySelector("main").childNodes);
      opened.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
      if (focused) document.querySelector(`#${focused} summary`)?.focus();
      document.title = fresh.title;
      stale.textContent = "";
      at = new Date();
      if (state() !== before) said.textContent = before = state();
    } catch {
      stale.textContent = `The relay does not answer. This is from ${at.toLocaleTimeString()}.`;
    }
  }
  setInterval(refresh, 2000);
  document.addEventListener("visibilitychange", refresh);
})();
