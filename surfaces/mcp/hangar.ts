/** What hangar offers over MCP: its operations as tools, its sessions and artifacts as resources. */
import type { Log } from '../../domain/ports.ts'
import type { Operation, Services } from '../operations/operation.ts'
import type { McpFeatures } from './features.ts'
import { createResources } from './resources.ts'
import { createTools } from './tools.ts'
import { PROGRESS, type ProgressOptions } from './wait.ts'

export interface HangarFeaturesDeps {
  readonly operations: readonly Operation[]
  readonly services: Services
  readonly version: string
  readonly log: Log
  readonly progress?: Partial<ProgressOptions>
}

/** What a model is told of the whole. */
export const INSTRUCTIONS = `Hangar hands work to coding agents in sandboxes and gives it back by git.
1. new_session begins a session on a repo with a message, and hands over what you have in context: commits as a bundle, uncommitted changes as a patch, files. list_repos says which repos there are.
2. wait_for_turn waits for the turn to end; when it answers done: false, call it again.
3. outcome needs_input is a question: answer it with send_to_session, then wait again. Send further messages the same way.
4. get_session_patch gives the whole change as a patch for git apply; get_artifact gives a file that the agent handed back.
hint in an answer says which tool to call next. A refusal says what was wrong and what to do.`

export function hangarFeatures(deps: HangarFeaturesDeps): McpFeatures {
  const tools = createTools({ ...deps, progress: { ...PROGRESS, ...deps.progress } })
  return {
    info: { name: 'hangar', title: 'Hangar', version: deps.version },
    instructions: INSTRUCTIONS,
    capabilities: { tools: {}, resources: { subscribe: true }, completions: {}, logging: {} },
    tools: tools.list,
    callTool: tools.call,
    ...createResources(deps),
  }
}
