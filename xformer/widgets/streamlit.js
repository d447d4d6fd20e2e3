// Mounts a widget in Streamlit: https://docs.streamlit.io/develop/concepts/custom-components/components-v2.

/**
 * Return the function that Streamlit calls with new data.
 * @param {new (parent: HTMLElement) => any} View has update and destroy
 * @param {string} [event] the event in Python that its `send` triggers; without one, `send` also takes the name of an event
 */
export function mounted(View, event) {
  const views = new WeakMap(); // element -> its view, so that a rerun keeps its state
  return ({ data, parentElement, setTriggerValue }) => {
    let view = views.get(parentElement);
    if (!view) views.set(parentElement, (view = new View(parentElement)));
    const call = (view.calls = (view.calls ?? 0) + 1);
    view.send = event ? (value) => setTriggerValue(event, value) : setTriggerValue;
    view.update(data);
    return () => { // Streamlit also cleans up outdated calls; only the latest one destroys the view
      if (view.calls !== call) return;
      view.destroy();
      views.delete(parentElement);
    };
  };
}
