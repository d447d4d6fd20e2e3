// Puts the player together from its parts.

for (const part of [Picture, Ruler, Controls]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in Player.prototype) throw new Error(`Two parts of the player have ${name}.`);
  Object.defineProperties(Player.prototype, methods);
}
