/** The built-in price table. Prices change: the setting `prices_file` puts another in its place. */
import type { PriceTable } from '../domain/run-event.ts'

/** List prices in US dollars for a million tokens. Programs that report a cost themselves are not priced by it. */
export const BUILT_IN_PRICES: PriceTable = {
  date: '2026-11-30',
  models: {
    'gpt-5': { input: 1.25, output: 10, cacheRead: 0.125, cacheWrite: 0 },
    'gpt-5-mini': { input: 0.25, output: 2, cacheRead: 0.025, cacheWrite: 0 },
    'gpt-5-nano': { input: 0.05, output: 0.4, cacheRead: 0.005, cacheWrite: 0 },
    'claude-opus-4': { input: 15, output: 75, cacheRead: 1.5, cacheWrite: 18.75 },
    'claude-sonnet-4': { input: 3, output: 15, cacheRead: 0.3, cacheWrite: 3.75 },
    'claude-haiku-4': { input: 1, output: 5, cacheRead: 0.1, cacheWrite: 1.25 },
    'gemini-2.5-pro': { input: 1.25, output: 10, cacheRead: 0.31, cacheWrite: 0 },
    'gemini-2.5-flash': { input: 0.3, output: 2.5, cacheRead: 0.075, cacheWrite: 0 },
  },
}
