// Hands the ruler to Streamlit, one ruler an element.

const instances = new WeakMap(); // the element that holds a ruler -> its ruler, so a rerun finds where it was

export default function ({ data, parentElement, setTriggerValue }) {
  let ruler = instances.get(parentElement);
  if (!ruler) instances.set(parentElement, (ruler = new StepRuler(parentElement)));
  const call = ++ruler.calls;
  ruler.send = (rest) => setTriggerValue("rest", rest);
  ruler.update(data);
  return () => {
    if (ruler.calls !== call) return;
    ruler.destroy();
    instances.delete(parentElement);
  };
}
