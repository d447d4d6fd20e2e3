// Helpers of stand-alone pages: the embedded data, and changes of the browser's theme.

export const place = (name) => document.getElementById(name);

export function written(name) { // the base64 content of an element as bytes
  return Uint8Array.from(atob(place(name).textContent.trim()), (letter) => letter.charCodeAt(0));
}

export const whenThemeChanges = (draw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
