// What a page that stands alone gives its widget: the bytes that are written in it, and the browser's theme.

export const place = (name) => document.getElementById(name);

export function written(name) { // the bytes of an element, which holds them as base64
  return Uint8Array.from(atob(place(name).textContent.trim()), (letter) => letter.charCodeAt(0));
}

export const whenThemeChanges = (draw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
