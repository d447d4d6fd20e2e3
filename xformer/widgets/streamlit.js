// Shows a widget in Streamlit: https://docs.streamlit.io/develop/concepts/custom-components/components-v2.

// The function that Streamlit calls with new data. `View` has update, destroy and send, which tells Python about `event`.
export function mounted(View, event) {
  const views = new WeakMap(); // the element that holds a view -> its view, so that a rerun finds its state
  return ({ data, parentElement, setTriggerValue }) => {
    let view = views.get(parentElement);
    if (!view) views.set(parentElement, (view = new View(parentElement)));
    const call = (view.calls = (view.calls ?? 0) + 1);
    view.send = (value) => setTriggerValue(event, value);
    view.update(data);
    return () => { // Streamlit also cleans up outdated calls: only the latest one takes the view down
      if (view.calls !== call) return;
      view.destroy();
      views.delete(parentElement);
    };
  };
}
