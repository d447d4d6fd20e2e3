// Helpers of stand-alone pages: the embedded data, and changes of the browser's theme.

/** @param {string} name */
export const place = (name) => /** @type {HTMLElement} */ (document.getElementById(name));

/** The base64 content of an element as bytes. @param {string} name */
export function embedded(name) {
  return Uint8Array.from(atob((place(name).textContent ?? "").trim()), (letter) => letter.charCodeAt(0));
}

export const whenThemeChanges = (draw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
