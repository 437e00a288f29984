package manpage

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// group is the annotation of a flag with the name of its group.
const group = "belay.dev/group"

// Command is a command with its own flags, for docs/flags (hack/flags).
type Command struct {
	// Name is the whole of it: "kubectl belay stuck".
	Name  string
	About string
	Flags []Flag
}

// Flag is one flag.
type Flag struct {
	Name, Shorthand string
	// Type is what pflag calls the type of the value: "duration", "stringSlice".
	Type, Default, Usage string
	// Group is the group in the help; empty in a help without groups.
	Group string
	// Inherited flags are those of the program, which all its commands accept.
	Inherited bool
}

// SetGroup notes the group of a command's flags.
func SetGroup(cmd *cobra.Command, name string, set *pflag.FlagSet) {
	set.VisitAll(func(f *pflag.Flag) {
		if err := cmd.Flags().SetAnnotation(f.Name, group, []string{name}); err != nil {
			panic(err) // the command has no such flag
		}
	})
}

// Flags lists the commands of a program, itself first. The flags are in the order of their names.
func Flags(cmd *cobra.Command) []Command {
	cmd.InitDefaultHelpCmd()
	command := Command{Name: cmd.CommandPath(), About: cmd.Short}
	if display := cmd.Root().Annotations[cobra.CommandDisplayNameAnnotation]; display != "" {
		command.Name = display + command.Name[len(cmd.Root().Name()):]
	}
	cmd.NonInheritedFlags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		listed := Flag{
			Name: f.Name, Shorthand: f.Shorthand, Type: f.Value.Type(), Default: f.DefValue, Usage: f.Usage,
			Inherited: cmd.PersistentFlags().Lookup(f.Name) != nil,
		}
		if of := f.Annotations[group]; len(of) > 0 {
			listed.Group = of[0]
		}
		command.Flags = append(command.Flags, listed)
	})
	commands := []Command{command}
	for _, child := range cmd.Commands() {
		if child.IsAvailableCommand() && child.Name() != "help" && child.Name() != "completion" {
			commands = append(commands, Flags(child)...)
		}
	}
	return commands
}
