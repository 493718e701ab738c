/** `hangar demo` */
import type { Command } from 'commander'

export function addDemoCommand(program: Command): void {
  program
    .command('demo')
    .description('hand half-finished work to a scripted agent and get it back, all in a temporary directory')
    .option('--keep', 'leave the temporary directory')
    .action(async (options: { keep?: boolean }) => {
      const { runDemo } = await import('../demo.ts')
      await runDemo({ keep: options.keep === true })
    })
}
