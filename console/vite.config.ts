import { defineConfig, type Plugin } from "vite";

// The fleet page is what most people open: its code comes beside the shell's, not after it.
const FIRST_PAGE = "/src/fleet.tsx";

const firstPage: Plugin = {
  name: "first-page",
  transformIndexHtml: {
    order: "post",
    handler(_, { bundle = {} }) {
      const chunks = Object.values(bundle).flatMap((one) => (one.type === "chunk" ? [one] : []));
      const first = chunks.find((one) => one.facadeModuleId?.endsWith(FIRST_PAGE)), entry = chunks.find((one) => one.isEntry);
      const wanted = new Set<string>(), add = (name: string) => {
        if (wanted.has(name) || name === entry?.fileName) return;
        wanted.add(name);
        chunks.find((one) => one.fileName === name)?.imports.forEach(add);
      };
      if (first) add(first.fileName);
      return [...wanted].map((name) => ({ tag: "link", attrs: { rel: "modulepreload", crossorigin: true, href: `/${name}` }, injectTo: "head" as const }));
    },
  },
};

// The hub serves the result; nothing is loaded from anywhere else.
export default defineConfig({
  plugins: [firstPage],
  build: {
    outDir: "../watchkeeper/web/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
  },
});
