/// <reference types="vitest/config" />
import { defineConfig } from "vite";

// The hub serves the result; nothing is loaded from anywhere else.
export default defineConfig({
  build: {
    outDir: "../watchkeeper/web/static",
    emptyOutDir: true,
    target: "es2022",
    modulePreload: { polyfill: false },
    assetsInlineLimit: 0,
    // The first page and all that it imports are one file, also where other pages need a part of it.
    rolldownOptions: {
      output: { codeSplitting: { groups: [{ name: "index", test: /\/src\/(main\.tsx|lib\/durations\.ts)$/ }] } },
    },
  },
  // Times are local on the page; in tests everybody lives in Berlin, where the clock changes.
  test: { include: ["src/**/*.test.ts"], env: { TZ: "Europe/Berlin" } },
});
