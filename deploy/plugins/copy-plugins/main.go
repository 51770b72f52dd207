// Command copy-plugins copies the CNI plugins of the image that it is in to another folder: the chart's init container runs it
// where the cluster has no image volumes.
//
// It copies what can be a plugin: executable files of the folder itself, and files that its symbolic links lead to. Each appears
// complete or not at all, and replaces an earlier one. Nothing else in the other folder is touched.
package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// temporary is the name of a copy that is not complete. No CNI plugin's name begins with a dot.
const temporary = ".copy-plugins"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: copy-plugins FROM TO: copies the CNI plugins of the folder FROM into the folder TO")
		os.Exit(2)
	}
	from, to := filepath.Clean(os.Args[1]), filepath.Clean(os.Args[2])
	names, err := copyPlugins(from, to)
	if err != nil {
		fmt.Fprintln(os.Stderr, "copy-plugins:", err)
		os.Exit(1)
	}
	fmt.Printf("copied %d CNI plugins from %s to %s: %s\n", len(names), from, to, strings.Join(names, " "))
}

// copyPlugins returns the names of the plugins that it has copied.
func copyPlugins(from, to string) ([]string, error) {
	entries, err := os.ReadDir(from)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("this image has no folder %s: name the one with the plugins in plugins.path of the chart", from)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list the plugins: %w", err)
	}
	// One program may have many names: a link, like the image has.
	copied := map[string]string{}
	var names []string
	for _, entry := range entries {
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		file, err := program(source)
		if err != nil {
			return nil, err
		}
		if file == "" {
			continue
		}
		if err := place(file, copied[file], filepath.Join(to, temporary), target); err != nil {
			return nil, fmt.Errorf("cannot copy the plugin %s: %w", source, err)
		}
		copied[file] = target
		names = append(names, entry.Name())
	}
	if len(names) == 0 {
		return nil, fmt.Errorf("the folder %s of this image has no executable files: name the one with the plugins in plugins.path "+
			"of the chart", from)
	}
	return names, nil
}

// program returns the file behind a name, or nothing if it is no program: a folder, a text.
func program(path string) (string, error) {
	file, err := filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("the symbolic link %s leads to nothing in this image", path)
	}
	if err != nil {
		return "", fmt.Errorf("cannot follow the symbolic link %s: %w", path, err)
	}
	info, err := os.Stat(file)
	if err != nil {
		return "", err
	}
	if !info.Mode().IsRegular() || info.Mode()&0o111 == 0 {
		return "", nil
	}
	return file, nil
}

// place puts a program, or another link to its copy, at target.
func place(file, copied, temporary, target string) error {
	// Of an earlier run that was killed.
	if err := os.Remove(temporary); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	write := func() error { return os.Link(copied, temporary) }
	if copied == "" {
		write = func() error { return copyFile(file, temporary) }
	}
	if err := write(); err != nil {
		return err
	}
	if err := os.Rename(temporary, target); err != nil {
		return err
	}
	const execute = 1
	if err := syscall.Access(target, execute); err != nil {
		return fmt.Errorf("%s cannot be executed, perhaps because its file system is mounted noexec: %w", target, err)
	}
	return nil
}

// copyFile writes a new file that everybody may execute. It has no other bits, such as setuid.
func copyFile(from, to string) (err error) {
	source, err := os.Open(from)
	if err != nil {
		return err
	}
	defer source.Close()
	target, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o755)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if _, err := io.Copy(target, source); err != nil {
		return err
	}
	// Whatever the umask.
	return target.Chmod(0o755)
}
