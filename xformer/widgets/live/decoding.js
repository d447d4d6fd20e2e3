// Greedy step-by-step prediction: the steps of an encoder are its positions; a decoder is run again for each token.
//
//   p = softmax(logits at the last position);  token = argmax p        until the end token, `most` steps, or the longest input

import { argmax, softmax, tensor } from "./tensors.js";

// `run(stream, target)` returns the trace of a forward pass; `example` is the input, `config` the model's configuration.
export function decode(config, example, run, most = Infinity) {
  const row = (logits, at) => logits.data.subarray(at * config.vocab_size, (at + 1) * config.vocab_size);
  const step = (position, trace, at, read) => {
    const logits = row(trace.get("logits"), at), predicted = argmax(logits);
    const probabilities = softmax(tensor([1, config.vocab_size], logits)).data;
    return { position, token: predicted, predicted, probabilities, read, trace };
  };
  if (config.architecture === "encoder") { // the class of an image is predicted at its class token, which comes first
    const trace = run(example.stream, null), n = Math.min(most, config.image ? 1 : example.stream.length);
    return Array.from({ length: n }, (_, at) => step(at, trace, at, example.stream));
  }
  const isEncoderDecoder = config.architecture === "encoder-decoder", steps = [];
  if (isEncoderDecoder && config.start_token === null) throw new Error("This encoder-decoder has no start token, so there is nothing to begin an answer with.");
  let read = isEncoderDecoder ? [config.start_token] : example.tokens;
  for (const limit = config.max_len - read.length + 1; steps.length < Math.min(most, limit);) {
    const trace = isEncoderDecoder ? run(example.tokens, read) : run(read, null);
    steps.push(step(steps.length, trace, read.length - 1, read));
    const { token } = steps.at(-1);
    if (token === config.end_token) break;
    read = [...read, token];
  }
  return steps;
}

// The n tokens after a text; if it exceeds the context length, only its end is read.
export function continueText(config, tokens, run, n) {
  const steps = [];
  let text = [...tokens];
  while (steps.length < n) {
    const window = text.slice(-config.max_len);
    for (const step of decode(config, { tokens: window, stream: window }, run, n - steps.length)) {
      text = [...text, step.token];
      steps.push({ ...step, position: steps.length });
      if (step.token === config.end_token) return steps;
    }
  }
  return steps;
}
