// Package explain turns decisions into text, the same for events, logs and tools. Texts that operators match on are upstream's to
// the letter, and belay's additions follow them. Plain wrapping of an error ("read claim ns/name: ...") stays where the attempt is made.
package explain
