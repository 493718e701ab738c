/** What to do next after a wait, in the words of the surface that answers: CLI commands over REST, tools over MCP. */
import type { SessionName } from '../domain/names.ts'
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
