// Keeps one entry per screen and per level of Home's zoom in the browser's history, so that a single Back leaves it. Streamlit
// adds an entry for each change of the address; here only a change of these after a click or a key press adds one. Two cases
// need care:
// - After two quick Backs, Streamlit sends the address of the screen in between once more. An entry for it would cut off Forward.
// - On a busy machine the parameters of the next screen may arrive before its path, and overwrite the entry of the previous
//   screen. That entry's address is then restored.
// Read in Streamlit 1.67.0, which has no option for this: https://github.com/streamlit/streamlit/pull/16831. The tests are in
// tests/browser/test_navigation.py.
if (!window.xformerHistory) {
  window.xformerHistory = true;
  const push = history.pushState.bind(history);
  let byHand = true;
  let before = location.href; // the address of the entry before it was overwritten
  addEventListener("popstate", () => { byHand = false; before = location.href; }, true);
  for (const what of ["pointerdown", "keydown", "click"]) addEventListener(what, () => { byHand = true; }, true);
  history.pushState = (state, title, address) => {
    const next = new URL(address, location.href), now = new URL(location.href);
    const isSame = next.pathname === now.pathname && next.searchParams.get("zoom") === now.searchParams.get("zoom");
    if (isSame || !byHand) {
      before = location.href;
      history.replaceState(state, title, address);
      return;
    }
    if (next.search && next.search === now.search) history.replaceState(history.state, title, before);
    push(state, title, address);
    before = location.href;
    // On a phone the sheet with the navigation covers the new screen, so close it.
    if (innerWidth <= 640) document.querySelector("[data-testid=stSidebarCollapseButton] button")?.click();
  };
}
