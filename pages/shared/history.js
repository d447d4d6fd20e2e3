// A screen writes its link over its own entry of the browser's history: one Back leaves the screen, whatever was clicked on it.
// Streamlit adds an entry for each change of the address; this one lets only another screen be one, and only for what a hand
// did: when Back is pressed twice, a late word from the screen between names that screen once more, and would cut off Forward.
// And on a busy machine the link of the next screen may come before its name: then it stood in the entry of the one that is left,
// which Back would open with it, and gets its own back.
if (!window.xformerHistory) {
  window.xformerHistory = true;
  const push = history.pushState.bind(history);
  let byHand = true;
  let before = location.href; // what the entry said before it was written over
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
  };
}
