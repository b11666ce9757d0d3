// The shared secret in front of the Worker, compared in constant time.

/** Whether a request carries the secret. Digests are compared: they have one length, whatever was sent. */
export async function authorized(request: Request, secret: string | undefined): Promise<boolean> {
  const given = /^Bearer (.+)$/.exec(request.headers.get("authorization") ?? "")?.[1];
  if (!secret || !given) {
    return false;
  }
  const [expected, received] = await Promise.all([digest(secret), digest(given)]);
  return crypto.subtle.timingSafeEqual(expected, received);
}

async function digest(text: string): Promise<ArrayBuffer> {
  return crypto.subtle.digest("SHA-256", new TextEncoder().encode(text));
}
