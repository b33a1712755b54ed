// Dark or light: as chosen, else as the system has it.

import { useEffect, useState } from "preact/hooks";

const prefersLight = matchMedia("(prefers-color-scheme: light)");

const themeNow = () => localStorage.getItem("theme") ?? (prefersLight.matches ? "light" : "dark");

export function useTheme(): [string, () => void] {
  const [theme, choose] = useState(themeNow);
  document.documentElement.dataset.theme = theme;
  useEffect(() => {
    const follow = () => choose(themeNow());
    prefersLight.addEventListener("change", follow);
    return () => prefersLight.removeEventListener("change", follow);
  }, []);
  return [
    theme,
    () => {
      const next = theme === "dark" ? "light" : "dark";
      localStorage.setItem("theme", next);
      choose(next);
    },
  ];
}
