package main

import (
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"
)

// versionJSON is the version in JSON.
type versionJSON struct {
	Version string `json:"version"` // a release, or a pseudo-version of a commit
	Go      string `json:"go"`
	OS      string `json:"os"`
	Arch    string `json:"arch"`
}

func newVersion(g *global) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Long: `Prints the version, the version of Go that built it, and the system it was built
for. The version of a build from a clone is the one that Go derives from the commit,
or (devel).`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			v := versionJSON{version(), runtime.Version(), runtime.GOOS, runtime.GOARCH}
			if g.json {
				return printJSON(cmd.OutOrStdout(), v)
			}
			_, err := fmt.Fprintf(cmd.OutOrStdout(), "distsync %s %s %s/%s\n", v.Version, v.Go,
				v.OS, v.Arch)
			return err
		},
	}
}

// version returns the release or commit that the program was built from.
func version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "unknown"
	}
	return info.Main.Version
}
