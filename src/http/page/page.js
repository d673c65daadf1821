// Fetches this page every two seconds and takes over what it shows. Without it the page loads itself again.
(() => {
  const shown = document.querySelector("main"), stale = document.getElementById("stale"), said = document.getElementById("said");
  const paused = document.getElementById("paused"), icon = document.querySelector("link[rel=icon]");
  const state = () => shown.querySelector("h1").textContent;
  let at = new Date(), before = state();
  // What is selected would be gone with a fresh copy.
  const isSelecting = () => !getSelection().isCollapsed && shown.contains(getSelection().anchorNode);
  const buttons = () => shown.querySelectorAll(".copy").forEach((button) => { button.hidden = false; });
  async function refresh() {
    if (document.hidden) return;
    paused.textContent = isSelecting() ? `Paused while text is selected. This is from ${at.toLocaleTimeString()}.` : "";
    if (paused.textContent) return;
    try {
      const answer = await fetch(location.href, { cache: "no-store", signal: AbortSignal.timeout(5000) });
      const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
      if (isSelecting()) return;
      const opened = [...shown.querySelectorAll("details[open]")].map((details) => details.id);
      const focused = document.activeElement?.closest?.("details")?.id;
      const copying = [...shown.querySelectorAll(".copy")].indexOf(document.activeElement);
      shown.replaceChildren(...fresh.querySelector("main").childNodes);
      opened.forEach((id) => document.getElementById(id)?.setAttribute("open", ""));
      buttons();
      if (focused) document.querySelector(`#${focused} summary`)?.focus();
      if (copying >= 0) shown.querySelectorAll(".copy")[copying]?.focus();
      document.title = fresh.title;
      // Set only when it differs: browsers load it again each time.
      const colour = fresh.querySelector("link[rel=icon]").getAttribute("href");
      if (icon.getAttribute("href") !== colour) icon.setAttribute("href", colour);
      stale.textContent = "";
      at = new Date();
      if (state() !== before) said.textContent = before = state();
    } catch {
      stale.textContent = `The relay does not answer. This is from ${at.toLocaleTimeString()}.`;
    }
  }
  async function copy(button) {
    const command = button.previousElementSibling;
    try {
      await navigator.clipboard.writeText(command.textContent);
      said.textContent = button.textContent = "Copied";
    } catch {
      // Not over plain HTTP from another machine: select it, so that the keyboard can.
      getSelection().selectAllChildren(command);
    }
  }
  shown.addEventListener("click", (event) => { if (event.target.matches(".copy")) copy(event.target); });
  document.addEventListener("selectionchange", () => { if (paused.textContent && !isSelecting()) refresh(); });
  document.addEventListener("visibilitychange", refresh);
  setInterval(refresh, 2000);
  buttons();
})();
