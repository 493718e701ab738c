/** The operations on environments: list them, and check what one keeps of the network. */
import { Type } from '@sinclair/typebox'
import type { Environment } from '../../domain/environment.ts'
import { errors } from '../../domain/errors.ts'
import { MB } from '../../domain/limits.ts'
import { listOf, orNull } from '../shapes.ts'
import { budgetView } from '../views.ts'
import { json, type Operation, operation } from './operation.ts'

const strict = { additionalProperties: false } as const
const Name = Type.String({ minLength: 1, maxLength: 200 })
const NumberOrNull = orNull(Type.Number())

const EnvironmentShape = Type.Object({
  name: Name,
  provider: Type.String(),
  image: orNull(Type.String()),
  harness: Type.String(),
  limits: Type.Object({
    cpu: NumberOrNull,
    memory_mb: NumberOrNull,
    pids: NumberOrNull,
    untracked_mb: Type.Number(),
  }),
  egress: orNull(Type.Array(Type.String(), { description: 'null: what the provider gives.' })),
  setup: Type.Boolean({ description: 'Whether fresh sandboxes run a set-up.' }),
  secrets: Type.Array(Type.String(), { description: "Names of the agent's and the set-up's secrets." }),
  budget: Type.Object({ max_minutes: NumberOrNull, max_tokens: NumberOrNull, max_cost_usd: NumberOrNull }),
  timeout_minutes: Type.Number(),
  idle_suspend_minutes: NumberOrNull,
})

const AttemptShape = Type.Object({
  address: Type.String({ description: "`host:port`, or the gateway's URL as sandboxes have it." }),
  outcome: Type.Union([Type.Literal('reached'), Type.Literal('refused'), Type.Literal('unknown')], {
    description: '`unknown`: what git said inside tells neither.',
  }),
  words: Type.String({ description: "git's own words." }),
})

const listEnvironments = operation({
  name: 'list_environments',
  summary: 'Lists the environments that sessions may name, without the values of their secrets.',
  scope: 'admin',
  method: 'get',
  path: '/api/environments',
  input: Type.Object({}, strict),
  output: listOf(EnvironmentShape),
  status: 200,
  handle: async (call) =>
    json(200, { items: [...call.services.config.environments.values()].map(environmentView), next_cursor: null }),
})

function environmentView(environment: Environment) {
  const { name, provider, image, harness, limits, egress } = environment
  return {
    name,
    provider,
    image,
    harness,
    limits: {
      cpu: limits.cpu,
      memory_mb: limits.memoryMb,
      pids: limits.pids,
      untracked_mb: environment.maxUntrackedBytes / MB,
    },
    egress,
    setup: environment.setup !== null,
    secrets: [...new Set([...Object.keys(environment.secrets), ...Object.keys(environment.setupSecrets)])].sort(),
    budget: budgetView(environment.budget),
    timeout_minutes: environment.timeoutMs / 60_000,
    idle_suspend_minutes: environment.idleSuspendMs === null ? null : environment.idleSuspendMs / 60_000,
  }
}

const checkEnvironment = operation({
  name: 'check_environment',
  summary:
    'Makes a sandbox of the environment, has it ask for the gateway and, where it has `egress`, for an address that is not in it, and removes it again: says what was reached.',
  restNote:
    'May take as long as a sandbox takes to begin. `hangar doctor` calls it for each environment with `egress`.',
  scope: 'admin',
  method: 'post',
  path: '/api/environments/{name}/check',
  cli: 'doctor',
  input: Type.Object({ name: Name }, strict),
  output: Type.Object({ gateway: AttemptShape, denied: Type.Array(AttemptShape) }),
  status: 200,
  handle: async (call, { name }) => {
    if (!call.services.config.environments.has(name))
      throw errors.notFound(`there is no environment ${JSON.stringify(name)}`)
    return json(200, await call.services.checkEnvironment(name))
  },
})

export const ENVIRONMENT_OPERATIONS: readonly Operation[] = [listEnvironments, checkEnvironment]
