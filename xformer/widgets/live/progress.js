// A learner's progress in a lesson: in the browser's storage, under a key for each lesson. Nothing is sent to the server.
//
//   const progress = readProgress("masks", shape);    // damaged, foreign or missing values count as a lesson not yet begun
//   writeProgress("masks", shape, progress);          // a full or forbidden storage is ignored
//
// `shape` describes the lesson: the number of its steps, and the steps with exercises and predictions (shapeOf).

/** @typedef {{ steps: number, exercises: number[], predictions: Record<number, number> }} Shape `predictions`: the number of answers */
/** @typedef {{ step: number, done: boolean, solved: Set<number>, answers: Map<number, number> }} Progress */

const VERSION = 1, MOST_CHARACTERS = 10_000;
const keyOf = (/** @type {string} */ name) => `xformer.lesson.${name}`;
const isIndex = (/** @type {any} */ value, /** @type {number} */ below) => Number.isInteger(value) && value >= 0 && value < below;

/** @returns {Progress} */
export const notBegun = () => ({ step: 0, done: false, solved: new Set(), answers: new Map() });
export const isBegun = (/** @type {Progress} */ { step, done, solved, answers }) => done || step > 0 || solved.size + answers.size > 0;

/** @param {any} lesson @param {(asked: any) => number} answersOf the number of possible answers to a prediction @returns {Shape} */
export function shapeOf(lesson, answersOf) {
  const shape = /** @type {Shape} */ ({ steps: lesson.steps.length, exercises: [], predictions: {} });
  lesson.steps.forEach(({ parts }, at) => {
    for (const part of parts) {
      if (part.kind === "exercise") shape.exercises.push(at);
      if (part.kind === "predict") shape.predictions[at] = answersOf(part);
    }
  });
  return shape;
}

/** The progress in a stored text. The last step is the end of the lesson, after its `steps`. @param {string | null} text @param {Shape} shape */
export function parseProgress(text, { steps, exercises, predictions }) {
  const found = notBegun();
  if (!text || text.length > MOST_CHARACTERS) return found;
  try {
    const { version, steps: stored, step, done, solved, answers } = JSON.parse(text);
    if (version !== VERSION || stored !== steps || !isIndex(step, steps + 1)) return found; // another version of the lesson
    found.solved = new Set(exercises.filter((at) => Array.isArray(solved) && solved.includes(at)));
    for (const [at, most] of Object.entries(predictions)) {
      if (isIndex(answers?.[at], most)) found.answers.set(Number(at), answers[at]);
    }
    return { ...found, step, done: done === true || step === steps };
  } catch {
    return found;
  }
}

/** @param {Progress} progress @param {Shape} shape */
export function textOf({ step, done, solved, answers }, { steps }) {
  return JSON.stringify({ version: VERSION, steps, step, done, solved: [...solved].sort((a, b) => a - b), answers: Object.fromEntries(answers) });
}

/** @param {string} name @param {Shape} shape @returns {Progress} */
export function readProgress(name, shape) {
  try {
    return parseProgress(localStorage.getItem(keyOf(name)), shape);
  } catch { // storage is forbidden
    return notBegun();
  }
}

/** @param {string} name @param {Shape} shape @param {Progress} progress */
export function writeProgress(name, shape, progress) {
  try {
    if (isBegun(progress)) localStorage.setItem(keyOf(name), textOf(progress, shape));
    else localStorage.removeItem(keyOf(name));
  } catch { /* storage is full or forbidden */ }
}

const counted = (/** @type {Progress} */ { solved }, /** @type {Shape} */ { exercises: { length } }) =>
  length ? `${solved.size} of ${length} solved` : "";

/** The progress in words, and the share of the steps reached. @param {Progress} progress @param {Shape} shape */
export function summary(progress, shape) {
  if (!isBegun(progress)) return { text: "Not started", solved: "", share: 0 };
  const text = progress.done ? "Done" : `Step ${progress.step + 1} of ${shape.steps}`;
  return { text, solved: counted(progress, shape), share: progress.done ? 1 : progress.step / shape.steps };
}

/**
 * The links of a lesson's page, by its own address: in the app, at /lesson/NAME, to Learn, to the next lesson and to the screen where
 * it goes on; on the documentation site, at /lessons/NAME.html, to the next lesson; in a saved file, to nothing.
 * @param {{ protocol: string, pathname: string }} address
 * @param {{ name?: string, next?: { name: string } | null, app?: { link: string } | null }} lesson
 * @returns {{ learn?: string, next?: string, app?: string }}
 */
export function linksOf({ protocol, pathname }, { name, next, app }) {
  const found = /^(.*)\/(lesson\/[\w-]+|lessons\/[\w-]+\.html)$/.exec(pathname);
  if (!/^https?:$/.test(protocol) || !found || !name) return {};
  const [, base, page] = found;
  if (page === `lessons/${name}.html`) return next ? { next: `${next.name}.html` } : {};
  if (page !== `lesson/${name}`) return {};
  return { learn: `${base}/learn`, ...(next ? { next: `${base}/lesson/${next.name}` } : {}), ...(app ? { app: `${base}${app.link}` } : {}) };
}
