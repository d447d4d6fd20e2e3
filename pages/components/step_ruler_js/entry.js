// Puts the ruler together from its parts and hands it to Streamlit, one ruler an element.

for (const part of [Timeline, Tracks, Now, Controls]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in StepRuler.prototype) throw new Error(`Two parts of the ruler have ${name}.`);
  Object.defineProperties(StepRuler.prototype, methods);
}

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
