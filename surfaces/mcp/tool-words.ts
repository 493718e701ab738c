/** Refusals in a tool's answer: the sentence, its code and details, with tools named where it names CLI commands. */
import type { CallToolResult } from '@modelcontextprotocol/sdk/types.js'
import { HangarError } from '../../domain/errors.ts'
import type { Operation } from '../operations/operation.ts'
import { problemOf } from '../problem.ts'

/** Sentences come from floors that know the CLI only; a model has the tool of the same operation at hand. */
export function createToolWords(operations: readonly Operation[]): (sentence: string) => string {
  const tools = new Map(
    operations.flatMap(({ cli, tool, name }) =>
      cli === undefined || tool === undefined ? [] : [[cli, name] as const],
    ),
  )
  return (sentence) =>
    sentence.replace(/\bhangar ([a-z]+ [a-z-]+)\b/g, (command, words: string) => {
      const tool = tools.get(words)
      return tool === undefined ? command : tool
    })
}

/** The same refusal, its sentence in the words that are given. */
export function reworded(error: unknown, words: (sentence: string) => string): unknown {
  return error instanceof HangarError ? new HangarError(error.code, words(error.message), error.details, error) : error
}

/** An answer that says no: a sentence, then `code`, and where they apply `item`, `reason` and `missing`, each on a line. */
export function refusal(error: unknown): CallToolResult {
  const { detail, code, item_index: index, item_name: name, reason, missing } = problemOf(error)
  const lines = [
    detail,
    `code: ${code}`,
    ...(index === undefined ? [] : [`item: context[${index}]${name === undefined ? '' : ` ${name}`}`]),
    ...(reason === undefined || detail.includes(reason) ? [] : [`reason: ${reason}`]),
    ...(missing === undefined ? [] : [`missing: ${missing.join(' ')}`]),
  ]
  return { isError: true, content: [{ type: 'text', text: lines.join('\n') }] }
}
