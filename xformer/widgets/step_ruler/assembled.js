// Puts the ruler together from its parts.

for (const part of [Timeline, Tracks, Now, Controls]) {
  const { constructor, ...methods } = Object.getOwnPropertyDescriptors(part.prototype);
  for (const name of Object.keys(methods)) if (name in StepRuler.prototype) throw new Error(`Two parts of the ruler have ${name}.`);
  Object.defineProperties(StepRuler.prototype, methods);
}
