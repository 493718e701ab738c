/** What the published conformance suite of MCP expects a server to offer, behind the same interface that hangar's own features are behind. */
import type { CallToolResult, GetPromptResult, Prompt, Tool } from '@modelcontextprotocol/sdk/types.js'
import type { McpCall, McpFeatures } from '../../surfaces/mcp/features.ts'
import { RPC, RpcError } from '../../surfaces/mcp/rpc.ts'

const PNG = 'iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8DwHwAFBQIAX8jx0gAAAABJRU5ErkJggg=='
const WAV = 'UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAAB9AAACABAAZGF0YQIAAAAAAA=='

const text = (content: string) => ({ type: 'text' as const, text: content })
const image = { type: 'image' as const, data: PNG, mimeType: 'image/png' }
const pause = () => new Promise((resolve) => setTimeout(resolve, 50))
const answer = (...content: CallToolResult['content']): CallToolResult => ({ content })

interface Fixture {
  readonly input?: Tool['inputSchema']
  run(args: Readonly<Record<string, unknown>>, call: McpCall): Promise<CallToolResult>
}

const withText = (name: string): Tool['inputSchema'] => ({
  type: 'object',
  required: [name],
  properties: { [name]: { type: 'string' } },
})

const elicit = async (call: McpCall, message: string, properties: object, required: readonly string[]) => {
  const requestedSchema = { type: 'object', properties, required } as never
  const { action, content } = await call.ask({ method: 'elicitation/create', params: { message, requestedSchema } })
  return { action: String(action), content: JSON.stringify(content ?? {}) }
}

const TOOLS: Readonly<Record<string, Fixture>> = {
  test_simple_text: { run: async () => answer(text('This is a simple text response for testing.')) },
  test_image_content: { run: async () => answer(image) },
  test_audio_content: { run: async () => answer({ type: 'audio', data: WAV, mimeType: 'audio/wav' }) },
  test_embedded_resource: {
    run: async () =>
      answer({
        type: 'resource',
        resource: {
          uri: 'test://embedded-resource',
          mimeType: 'text/plain',
          text: 'This is an embedded resource content.',
        },
      }),
  },
  test_multiple_content_types: {
    run: async () =>
      answer(text('Multiple content types test:'), image, {
        type: 'resource',
        resource: {
          uri: 'test://mixed-content-resource',
          mimeType: 'application/json',
          text: '{"test":"data","value":123}',
        },
      }),
  },
  test_tool_with_logging: {
    run: async (_args, call) => {
      for (const data of ['Tool execution started', 'Tool processing data', 'Tool execution completed']) {
        await call.notify({ method: 'notifications/message', params: { level: 'info', data } })
        await pause()
      }
      return answer(text('logged'))
    },
  },
  test_error_handling: {
    run: async () => ({ isError: true, content: [text('This tool intentionally returns an error for testing')] }),
  },
  test_tool_with_progress: {
    run: async (_args, { progressToken, notify }) => {
      for (const progress of [0, 50, 100]) {
        if (progressToken !== null)
          await notify({ method: 'notifications/progress', params: { progressToken, progress, total: 100 } })
        await pause()
      }
      return answer(text('done'))
    },
  },
  test_sampling: {
    input: withText('prompt'),
    run: async ({ prompt }, call) => {
      const messages = [{ role: 'user' as const, content: text(String(prompt)) }]
      const { content } = await call.ask({ method: 'sampling/createMessage', params: { messages, maxTokens: 100 } })
      return answer(text(`LLM response: ${String((content as { text?: unknown }).text)}`))
    },
  },
  test_elicitation: {
    input: withText('message'),
    run: async ({ message }, call) => {
      const properties = {
        username: { type: 'string', description: "User's response" },
        email: { type: 'string', description: "User's email address" },
      }
      const { action, content } = await elicit(call, String(message), properties, ['username', 'email'])
      return answer(text(`User response: action: ${action}, content: ${content}`))
    },
  },
  test_elicitation_sep1034_defaults: {
    run: async (_args, call) => {
      const properties = {
        name: { type: 'string', default: 'John Doe' },
        age: { type: 'integer', default: 30 },
        score: { type: 'number', default: 95.5 },
        status: { type: 'string', enum: ['active', 'inactive', 'pending'], default: 'active' },
        verified: { type: 'boolean', default: true },
      }
      const { action, content } = await elicit(call, 'Defaults', properties, [])
      return answer(text(`Elicitation completed: action=${action}, content=${content}`))
    },
  },
  test_elicitation_sep1330_enums: {
    run: async (_args, call) => {
      const three = ['option1', 'option2', 'option3']
      const titled = (noun: string) =>
        ['First', 'Second', 'Third'].map((title, at) => ({ const: `value${at + 1}`, title: `${title} ${noun}` }))
      const properties = {
        untitledSingle: { type: 'string', enum: three },
        titledSingle: { type: 'string', oneOf: titled('Option') },
        legacyEnum: {
          type: 'string',
          enum: ['opt1', 'opt2', 'opt3'],
          enumNames: ['Option One', 'Option Two', 'Option Three'],
        },
        untitledMulti: { type: 'array', items: { type: 'string', enum: three } },
        titledMulti: { type: 'array', items: { anyOf: titled('Choice') } },
      }
      const { action, content } = await elicit(call, 'Enums', properties, [])
      return answer(text(`Elicitation completed: action=${action}, content=${content}`))
    },
  },
  json_schema_2020_12_tool: {
    input: {
      $schema: 'https://json-schema.org/draft/2020-12/schema',
      type: 'object',
      $defs: { address: { type: 'object', properties: { street: { type: 'string' }, city: { type: 'string' } } } },
      properties: { name: { type: 'string' }, address: { $ref: '#/$defs/address' } },
      additionalProperties: false,
    },
    run: async () => answer(text('ok')),
  },
  test_reconnection: {
    run: async () => {
      await pause()
      return answer(text('reconnected'))
    },
  },
}

const PROMPTS: Readonly<
  Record<string, { about: Omit<Prompt, 'name'>; get(args: Readonly<Record<string, string>>): GetPromptResult }>
> = {
  test_simple_prompt: {
    about: { description: 'A prompt' },
    get: () => ({ messages: [{ role: 'user', content: text('This is a simple prompt for testing.') }] }),
  },
  test_prompt_with_arguments: {
    about: {
      description: 'A prompt with arguments',
      arguments: [
        { name: 'arg1', description: 'First', required: true },
        { name: 'arg2', description: 'Second', required: true },
      ],
    },
    get: ({ arg1, arg2 }) => ({
      messages: [{ role: 'user', content: text(`Prompt with arguments: arg1='${arg1}', arg2='${arg2}'`) }],
    }),
  },
  test_prompt_with_embedded_resource: {
    about: {
      description: 'A prompt with a resource',
      arguments: [{ name: 'resourceUri', description: 'What to embed', required: true }],
    },
    get: ({ resourceUri = '' }) => ({
      messages: [
        {
          role: 'user',
          content: {
            type: 'resource',
            resource: { uri: resourceUri, mimeType: 'text/plain', text: 'Embedded resource content for testing.' },
          },
        },
        { role: 'user', content: text('Please process the embedded resource above.') },
      ],
    }),
  },
  test_prompt_with_image: {
    about: { description: 'A prompt with an image' },
    get: () => ({
      messages: [
        { role: 'user', content: image },
        { role: 'user', content: text('Please analyze the image above.') },
      ],
    }),
  },
}

/** The fixtures of the suite. */
export const FIXTURES: McpFeatures = {
  info: { name: 'fixtures', version: '1.0.0' },
  instructions: 'For the conformance suite.',
  capabilities: { tools: {}, resources: { subscribe: true }, prompts: {}, completions: {}, logging: {} },
  tools: () =>
    Object.entries(TOOLS).map(([name, { input }]) => ({
      name,
      description: `The suite's ${name}`,
      inputSchema: input ?? { type: 'object' },
    })),
  callTool: (name, args, call) => TOOLS[name]?.run(args, call) ?? null,
  listResources: async () => ({
    resources: [
      { uri: 'test://static-text', name: 'text', description: 'Text', mimeType: 'text/plain' },
      { uri: 'test://static-binary', name: 'binary', description: 'Bytes', mimeType: 'image/png' },
    ],
  }),
  resourceTemplates: [{ uriTemplate: 'test://template/{id}/data', name: 'template', description: 'By id' }],
  readResource: async (_call, uri) => {
    const id = /^test:\/\/template\/([^/]+)\/data$/.exec(uri)?.[1]
    if (uri === 'test://static-binary') return { contents: [{ uri, mimeType: 'image/png', blob: PNG }] }
    if (uri === 'test://static-text')
      return { contents: [{ uri, mimeType: 'text/plain', text: 'This is the content of the static text resource.' }] }
    if (id !== undefined) {
      const body = { id, templateTest: true, data: `Data for ID: ${id}` }
      return { contents: [{ uri, mimeType: 'application/json', text: JSON.stringify(body) }] }
    }
    throw new RpcError(RPC.resourceNotFound, 'there is no such resource', { uri })
  },
  watchResource: async () => () => {},
  complete: async () => ({ values: ['paris', 'park', 'party'], total: 3, hasMore: false }),
  prompts: {
    list: () => Object.entries(PROMPTS).map(([name, { about }]) => ({ name, ...about })),
    get: (name, args) => {
      const prompt = PROMPTS[name]
      if (prompt === undefined) throw new RpcError(RPC.invalidParams, `there is no prompt ${name}`)
      return prompt.get(args)
    },
  },
}
