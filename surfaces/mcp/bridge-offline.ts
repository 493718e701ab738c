/** What the bridge shows while the server is away: the same tools, from the definitions that this program has itself. */
import { LATEST_PROTOCOL_VERSION, SUPPORTED_PROTOCOL_VERSIONS } from '@modelcontextprotocol/sdk/types.js'
import { OPERATIONS } from '../operations/all.ts'
import type { Tool } from './bridge-tools.ts'
import { INSTRUCTIONS } from './hangar.ts'
import { toolDefinitions } from './tools.ts'

/** The answer to `initialize` that a server of this version would give. */
export function offlineInitialize(
  params: Readonly<Record<string, unknown>>,
  version: string,
): Readonly<Record<string, unknown>> {
  const asked = params['protocolVersion']
  return {
    protocolVersion:
      typeof asked === 'string' && SUPPORTED_PROTOCOL_VERSIONS.includes(asked) ? asked : LATEST_PROTOCOL_VERSION,
    capabilities: { tools: {}, resources: { subscribe: true }, completions: {}, logging: {} },
    serverInfo: { name: 'hangar', title: 'Hangar', version },
    instructions: INSTRUCTIONS,
  }
}

/** The tools that a token with every scope has. */
export function offlineTools(): Tool[] {
  return toolDefinitions(OPERATIONS) as Tool[]
}
