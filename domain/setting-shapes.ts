/** Pieces of shapes that settings share. */
import { Type } from '@sinclair/typebox'

/** No key that is not named. */
export const strict = { additionalProperties: false } as const
/** Above 0. */
export const Positive = Type.Number({ exclusiveMinimum: 0 })
/** A budget as the config file spells it. */
export const BudgetShape = Type.Object(
  {
    max_minutes: Type.Optional(Positive),
    max_tokens: Type.Optional(Positive),
    max_cost_usd: Type.Optional(Positive),
  },
  strict,
)

/** The pattern of a port, 0 to 65535. */
export const PORT = '([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])'
