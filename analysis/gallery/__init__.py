"""Published studies side by side: what they hold on the claims, a page for each, a leaderboard, performance profiles.

gather          results folders -> evidence, from their tables if these are up to date
studies         what a published study is: its command, seconds, machine, versions; and the rules that it keeps
standings       which optimizer scales furthest and needs the fewest steps, with ties; performance profiles
pages           all of it as Markdown
"""
