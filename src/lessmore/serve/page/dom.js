// Elements and numbers. Texts go in as texts, so nothing in a name can be markup.

export const find = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

// Replace the text only if it is another one: a screen reader then hears changes alone.
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

export function press(button, on) {
  button.setAttribute("aria-pressed", String(on));
}

export const percent = (share, digits = 0) => `${(100 * share).toFixed(digits)} %`;
export const brief = (text, most = 80) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);

// A bar of a share, for the eye alone; the number stands beside it.
export function bar(plain = false) {
  const fill = make("i");
  const whole = make("span", { class: plain ? "bar plain" : "bar", "aria-hidden": "true" }, fill);
  whole.set = (share) => { fill.style.width = `${100 * Math.min(1, Math.max(0, share))}%`; };
  return whole;
}

// Let go of the picture that an image shows, and show another one.
export function showBlob(image, blob) {
  const old = image.src;
  image.src = URL.createObjectURL(blob);
  if (old.startsWith("blob:")) URL.revokeObjectURL(old);
}
