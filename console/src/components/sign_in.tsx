// Sign in with a name and password, or with a token.

import { useState } from "preact/hooks";
import { request } from "../lib/api";
import { setState } from "../lib/store";
import { focusOnMount, Panel } from "./parts";

export function SignIn() {
  const [problem, setProblem] = useState("");
  const send = async (event: Event) => {
    event.preventDefault();
    const form = new FormData(event.currentTarget as HTMLFormElement);
    const name = form.get("name");
    const secret = form.get("token");
    try {
      await request("/api/login", "POST", name ? { name, password: secret } : { token: secret });
      setState({ signIn: false });
      location.reload();
    } catch (error) {
      setProblem((error as Error).message);
    }
  };
  return (
    <main class="sign-in">
      <Panel>
        <h1>Watchkeeper</h1>
        <p class="dim">This hub requires authentication. Sign in with your name and password, or paste a token.</p>
        <form onSubmit={send}>
          <input
            name="name"
            autocomplete="username"
            aria-label="Name (leave empty for a token)"
            placeholder="Name (leave empty for a token)"
            data-testid="name"
          />
          <input
            type="password"
            name="token"
            autocomplete="current-password"
            required
            aria-label="Password or token"
            placeholder="Password or token"
            ref={focusOnMount}
            data-testid="token"
          />
          <button type="submit" class="primary">
            Sign in
          </button>
        </form>
        {problem && (
          <p class="problem" role="alert">
            {problem}
          </p>
        )}
      </Panel>
    </main>
  );
}
