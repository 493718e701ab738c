/** Bytes as MCP carries them: text when they are text, else base64. */
import type { CallToolResult, ReadResourceResult } from '@modelcontextprotocol/sdk/types.js'

const IMAGES = ['image/png', 'image/jpeg', 'image/gif', 'image/webp']

/** A content type without its parameters. */
export function mimeOf(contentType: string): string {
  return (contentType.split(';')[0] ?? '').trim()
}

/** The bytes as text when they are UTF-8 without NUL, byte for byte; else null. */
export function textOf(content: Uint8Array): string | null {
  if (content.includes(0)) return null
  try {
    return new TextDecoder('utf-8', { fatal: true, ignoreBOM: true }).decode(content)
  } catch {
    return null
  }
}

/** One block of a tool's answer. */
export function contentBlock(content: Uint8Array, contentType: string, uri: string): CallToolResult['content'][number] {
  const text = textOf(content)
  if (text !== null) return { type: 'text', text }
  const mimeType = mimeOf(contentType)
  const blob = Buffer.from(content).toString('base64')
  if (IMAGES.includes(mimeType)) return { type: 'image', data: blob, mimeType }
  return { type: 'resource', resource: { uri, mimeType, blob } }
}

/** What a resource read gives. */
export function resourceContents(content: Uint8Array, contentType: string, uri: string): ReadResourceResult {
  const mimeType = mimeOf(contentType)
  const text = textOf(content)
  return {
    contents: [
      text === null ? { uri, mimeType, blob: Buffer.from(content).toString('base64') } : { uri, mimeType, text },
    ],
  }
}
