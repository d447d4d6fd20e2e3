// A screen writes its link over its own entry of the browser's history, so that one Back leaves the screen. Streamlit adds an
// entry for each change of the address; here only another screen adds one, and only after a click or a key. Two cases need care:
// - After two quick Backs, Streamlit names the screen between once more. An entry for it would cut off Forward.
// - On a busy machine the link of the next screen may come before its name, and overwrite the entry of the screen that is left.
//   That entry then gets its own address back.
if (!window.xformerHistory) {
  window.xformerHistory = true;
  const push = history.pushState.bind(history);
  let byHand = true;
  let before = location.href; // the address of the entry before it was overwritten
  addEventListener("popstate", () => { byHand = false; before = location.href; }, true);
  for (const what of ["pointerdown", "keydown", "click"]) addEventListener(what, () => { byHand = true; }, true);
  history.pushState = (state, title, address) => {
    const next = new URL(address, location.href);
    if (next.pathname === location.pathname || !byHand) {
      before = location.href;
      history.replaceState(state, title, address);
      return;
    }
    if (next.search && next.search === location.search) history.replaceState(history.state, title, before);
    push(state, title, address);
    before = location.href;
    // On a phone the sheet with the screens lies over the one that was just chosen.
    if (innerWidth <= 640) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
  };
}
