// A screen writes its link over its own entry of the browser's history: one Back leaves the screen, whatever was clicked on it.
// Streamlit adds an entry for each change of the address; this one lets only another screen be one, and only for what a hand
// did: when Back is pressed twice, a late word from the screen between names that screen once more, and would cut off Forward.
if (!window.xformerHistory) {
  window.xformerHistory = true;
  const push = history.pushState.bind(history);
  let byHand = true;
  addEventListener("popstate", () => { byHand = false; }, true);
  for (const what of ["pointerdown", "keydown", "click"]) addEventListener(what, () => { byHand = true; }, true);
  history.pushState = (state, title, address) => {
    const isSameScreen = new URL(address, location.href).pathname === location.pathname;
    if (isSameScreen || !byHand) history.replaceState(state, title, address);
    else push(state, title, address);
  };
}
