// Package explain puts decisions into words: one source for the events on pods, for
// logs and for tools. Texts that operators match on are upstream's to the letter;
// what belay knows more is added behind them.
package explain
