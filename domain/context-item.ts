/** What may be handed in with a message. */
import type { Oid } from './names.ts'

export const ATTACHMENT_KINDS = ['file', 'text', 'log', 'issue', 'diff'] as const

/** An item as parsed from the wire: contents are bytes. `name` of an attachment is a safe relative path, or absent. */
export type ContextItem =
  | { readonly kind: (typeof ATTACHMENT_KINDS)[number]; readonly name: string | null; readonly content: Uint8Array }
  | { readonly kind: 'url'; readonly url: string }
  | { readonly kind: 'patch'; readonly name: string | null; readonly content: Uint8Array }
  | { readonly kind: 'bundle'; readonly name: string | null; readonly content: Uint8Array; readonly baseCommit: Oid }
  | { readonly kind: 'checkpoint'; readonly commit: Oid }
