// A screen writes its link over its own entry of the browser's history: one Back leaves the screen, whatever was clicked on it.
// Streamlit adds an entry for each change of the address; this one lets only another screen be one.
if (!window.xformerHistory) {
  window.xformerHistory = true;
  const push = history.pushState.bind(history);
  history.pushState = (state, title, address) => {
    const isSameScreen = new URL(address, location.href).pathname === location.pathname;
    if (isSameScreen) history.replaceState(state, title, address);
    else push(state, title, address);
  };
}
