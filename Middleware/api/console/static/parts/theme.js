/** Dark and light: the system's choice, or the reader's. */
import { html, useState } from "../html.js";

const NAME = "wilmer-console-theme";
const THEMES = ["system", "dark", "light"];

/** Called before anything is drawn. */
export function applyTheme() {
  const chosen = localStorage.getItem(NAME);
  if (chosen === "dark" || chosen === "light") document.documentElement.dataset.theme = chosen;
  else delete document.documentElement.dataset.theme;
}

export function ThemeButton() {
  const [theme, setTheme] = useState(localStorage.getItem(NAME) ?? "system");
  const next = () => {
    const chosen = THEMES[(THEMES.indexOf(theme) + 1) % THEMES.length];
    if (chosen === "system") localStorage.removeItem(NAME);
    else localStorage.setItem(NAME, chosen);
    applyTheme();
    setTheme(chosen);
  };
  return html`<button type="button" class="quiet" aria-label="Theme" title=${`Theme: ${theme}`} onClick=${next}>
    <span aria-hidden="true">${{ system: "◐", dark: "●", light: "○" }[theme]}</span>
    <span class="theme-name" aria-hidden="true"> ${theme}</span></button>`;
}
