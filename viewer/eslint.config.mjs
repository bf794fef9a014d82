// What the compiler does not look at: promises that nobody waits for, conditions that cannot fail, text made of objects.
// Layout is prettier's business.
import js from "@eslint/js";
import { defineConfig } from "eslint/config";
import tseslint from "typescript-eslint";

export default defineConfig(
  { ignores: [".tests/", ".bench/", "node_modules/"] },
  {
    files: ["**/*.mjs"],
    extends: [js.configs.recommended],
    languageOptions: { globals: { process: false, console: false } },
  },
  {
    files: ["**/*.ts"],
    extends: [js.configs.recommended, tseslint.configs.strictTypeChecked],
    languageOptions: { parserOptions: { projectService: true, tsconfigRootDir: import.meta.dirname } },
    rules: {
      eqeqeq: "error",
      "no-var": "error",
      "prefer-const": "error",
      "object-shorthand": "error",
      // An index that a loop has checked, and a key that was just set, are known to be there.
      "@typescript-eslint/no-non-null-assertion": "off",
      "@typescript-eslint/no-confusing-void-expression": [
        "error",
        { ignoreArrowShorthand: true, ignoreVoidReturningFunctions: true },
      ],
      // What is read from a record or an array by its key may not be there, which the types do not say.
      "@typescript-eslint/no-unnecessary-condition": "off",
      // A method of an interface may be taken out of its object; as a property, the linter can tell it from one of a class.
      "@typescript-eslint/method-signature-style": ["error", "property"],
      "@typescript-eslint/restrict-template-expressions": ["error", { allowNumber: true, allowBoolean: true }],
    },
  },
  {
    files: ["test/**/*.ts"],
    rules: {
      // node's runner waits for the tests itself.
      "@typescript-eslint/no-floating-promises": [
        "error",
        { allowForKnownSafeCalls: [{ from: "package", package: "node:test", name: ["test", "describe", "it"] }] },
      ],
    },
  },
);
