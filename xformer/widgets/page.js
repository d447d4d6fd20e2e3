// What a page that stands alone gives its picture: the bytes that are written in it, and the theme of whoever looks.

const place = (name) => document.getElementById(name);

function written(name) { // base64 is how bytes stand in a page
  const text = atob(place(name).textContent.trim()), bytes = new Uint8Array(text.length);
  for (let i = 0; i < bytes.length; i++) bytes[i] = text.charCodeAt(i);
  return bytes;
}

const whenThemeChanges = (draw) => matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
