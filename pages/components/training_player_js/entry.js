// Puts the player together from its parts and hands it to Streamlit, one player an element.

for (const part of [Picture, Ruler, Controls]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in Player.prototype) throw new Error(`Two parts of the player have ${name}.`);
  Object.defineProperties(Player.prototype, methods);
}

const instances = new WeakMap(); // the element that holds a player -> its player, so a rerun finds where it was

export default function ({ data, parentElement, setTriggerValue }) {
  let player = instances.get(parentElement);
  if (!player) instances.set(parentElement, (player = new Player(parentElement)));
  const call = ++player.calls;
  player.send = (rest) => setTriggerValue("rest", rest);
  player.update(data);
  return () => {
    if (player.calls !== call) return;
    player.destroy();
    instances.delete(parentElement);
  };
}
