// Hands the player to Streamlit, one player an element.

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
