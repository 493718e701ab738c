/** What to do next after a wait, in the words of the surface that answers: CLI commands over REST, tools over MCP. */
import type { JobRecord } from '../domain/job.ts'
import type { JobId, SessionName } from '../domain/names.ts'
import type { TurnRecord } from '../domain/session.ts'

/** The surface that an operation is called through. */
export type Surface = 'rest' | 'mcp'

interface Steps {
  wait(name: SessionName): string
  answer(name: SessionName, options: number): string
  fetch(name: SessionName): string
  look(name: SessionName): string
}

const STEPS: Readonly<Record<Surface, Steps>> = {
  rest: {
    wait: (name) => `wait again: hangar session wait ${name}`,
    answer: (name) => `hangar session send ${name} "…"`,
    fetch: (name) => `hangar session pull ${name}`,
    look: (name) => `hangar session events ${name}`,
  },
  mcp: {
    wait: (name) => `call wait_for_turn again with ref ${name}`,
    answer: (name, options) =>
      `call send_to_session with ref ${name} and message${options === 0 ? '' : ' (or option, its number from 1)'}, then wait_for_turn`,
    fetch: (name) => `call get_session_patch with ref ${name}, and get_artifact for what is under artifacts`,
    look: (name) => `call get_events with ref ${name}`,
  },
}

/** One sentence: how the turn stands, and the command or tool for what comes next. */
export function nextStep(surface: Surface, name: SessionName, turn: TurnRecord): string {
  const steps = STEPS[surface]
  if (turn.state !== 'ended') return `turn ${turn.turn} is ${turn.state}; ${steps.wait(name)}`
  switch (turn.outcome) {
    case 'needs_input':
      return `the agent waits for an answer: ${steps.answer(name, turn.questionOptions.length)}`
    case 'exited':
      return `fetch the work: ${steps.fetch(name)}`
    default:
      return `see what happened: ${steps.look(name)}; what was done so far can be fetched: ${steps.fetch(name)}`
  }
}

interface JobSteps {
  wait(id: JobId): string
  approve(id: JobId): string
  answer(id: JobId): string
  fetch(id: JobId): string
  look(id: JobId): string
}

const JOB_STEPS: Readonly<Record<Surface, JobSteps>> = {
  rest: {
    wait: (id) => `wait again: hangar job wait ${id}`,
    approve: (id) => `hangar job approve ${id}, or hangar job reject ${id}`,
    answer: (id) => `hangar job follow-up ${id} "…"`,
    fetch: (id) => `hangar session pull ${id}, or look at it: hangar job show ${id}`,
    look: (id) => `hangar job show ${id}`,
  },
  mcp: {
    wait: (id) => `call wait_for_turn again with ref ${id}`,
    approve: (id) => `call approve_job or reject_job with ref ${id}`,
    answer: (id) => `call follow_up_job with ref ${id} and message (or option), then wait_for_turn`,
    fetch: (id) => `call get_session_patch with ref ${id}, and get_job for all of it`,
    look: (id) => `call get_job with ref ${id}`,
  },
}

/** One sentence: how the job stands, and the command or tool for what comes next. */
export function jobStep(surface: Surface, { id, state, stateReason }: JobRecord): string {
  const steps = JOB_STEPS[surface]
  switch (state) {
    case 'awaiting_approval':
      return `the job waits for approval: ${steps.approve(id)}`
    case 'needs_input':
      return `the agent waits for an answer: ${steps.answer(id)}`
    case 'succeeded':
      return `fetch the work: ${steps.fetch(id)}`
    case 'queued':
    case 'running':
    case 'verifying':
    case 'delivering':
      return `the job is ${state}; ${steps.wait(id)}`
    default:
      return `the job is ${state}${stateReason === null ? '' : ` (${stateReason})`}; see what happened: ${steps.look(id)}`
  }
}
