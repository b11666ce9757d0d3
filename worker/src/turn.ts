// One batch in memory at a time.

/** Milliseconds that a request waits for its turn at most, and between two checks. */
const MAX_WAIT_MS = 20_000;
const LOOK_EVERY_MS = 20;

/**
 * Milliseconds after which a turn ends by itself: longer than any call lasts. Callers disconnect after 75 s at most, and
 * the runtime ends a disconnected request after 30 s more, without running its `finally`.
 */
const MAX_TURN_MS = 120_000;

/** Whose turn it is. A Worker has 128 MB for everything: one body of 10 MB fits as text and objects, two may not. */
let current: { until: number } | null = null;

/** Waits until no other batch is in memory; returns what ends the turn, or null if the wait was too long. */
export async function takeTurn(): Promise<(() => void) | null> {
  const deadline = Date.now() + MAX_WAIT_MS;
  while (current && Date.now() < current.until) {
    if (Date.now() > deadline) {
      return null;
    }
    await scheduler.wait(LOOK_EVERY_MS); // The runtime forbids awaiting another request's promise here.
  }
  const mine = { until: Date.now() + MAX_TURN_MS };
  current = mine;
  return () => {
    if (current === mine) {
      current = null;
    }
  };
}
