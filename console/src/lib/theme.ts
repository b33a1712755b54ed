// The colour theme: the user's choice, or else that of the system.

import { useEffect, useState } from "preact/hooks";

const prefersLight = matchMedia("(prefers-color-scheme: light)");

const currentTheme = () => localStorage.getItem("theme") ?? (prefersLight.matches ? "light" : "dark");

export function useTheme(): [string, () => void] {
  const [theme, setTheme] = useState(currentTheme);
  document.documentElement.dataset.theme = theme;
  useEffect(() => {
    const update = () => setTheme(currentTheme());
    prefersLight.addEventListener("change", update);
    return () => prefersLight.removeEventListener("change", update);
  }, []);
  return [
    theme,
    () => {
      const next = theme === "dark" ? "light" : "dark";
      localStorage.setItem("theme", next);
      setTheme(next);
    },
  ];
}
