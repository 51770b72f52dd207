// Command recorder stands where a CNI plugin is expected, under the plugin's name: it notes what it gets in
// ../calls, and then is the plugin of that name in ../real, or does what ../replies/NAME.VERB says, or nothing.
//
// Directories are relative to the one it was started from, so that links to it work.
package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// call is what a plugin gets. Input is standard input as it came.
type call struct {
	Plugin string
	Env    map[string]string
	Input  []byte
}

// reply is what a plugin does.
type reply struct {
	// Standard input is closed unread, and not noted.
	Deaf bool
	// Standard error.
	Stderr string
	// Standard output, so often, with these bytes in between.
	Stdout []byte
	Times  int
	// A child keeps standard output open for so long.
	ChildMs int
	// The plugin itself takes so long.
	SleepMs int
	// SIGTERM is answered by a file named "terminated" in the calls' directory, and the end.
	Polite bool
	// SIGTERM is ignored.
	Stubborn bool
	Signal   int
	Exit     int
}

func main() {
	self, err := filepath.Abs(os.Args[0])
	check(err)
	if len(os.Args) == 2 { // the child
		ms, err := time.ParseDuration(os.Args[1])
		check(err)
		time.Sleep(ms)
		return
	}
	name, root := filepath.Base(self), filepath.Dir(filepath.Dir(self))
	answer := read(filepath.Join(root, "replies", name+"."+os.Getenv("CNI_COMMAND")))

	var input []byte
	if answer == nil || !answer.Deaf {
		input, err = io.ReadAll(os.Stdin)
		check(err)
	}
	note(filepath.Join(root, "calls"), call{name, environment(), input})

	if answer != nil {
		act(self, root, answer)
		return
	}
	if plugin := filepath.Join(root, "real", name); exists(plugin) {
		feed(input)
		check(syscall.Exec(plugin, []string{plugin}, os.Environ()))
	}
}

func act(self, root string, answer *reply) {
	if answer.Deaf {
		check(os.Stdin.Close())
	}
	if answer.Stubborn {
		signal.Ignore(syscall.SIGTERM)
	}
	if answer.Polite {
		term := make(chan os.Signal, 1)
		signal.Notify(term, syscall.SIGTERM)
		go func() {
			<-term
			check(os.WriteFile(filepath.Join(root, "terminated"), nil, 0o600))
			os.Exit(1)
		}()
	}
	if answer.ChildMs > 0 {
		child := exec.Command(self, fmt.Sprint(answer.ChildMs, "ms"))
		child.Stdout = os.Stdout
		check(child.Start())
	}
	fmt.Fprint(os.Stderr, answer.Stderr)
	for range max(answer.Times, 1) {
		if _, err := os.Stdout.Write(answer.Stdout); err != nil {
			os.Exit(1) // nobody wants to know more
		}
	}
	time.Sleep(time.Duration(answer.SleepMs) * time.Millisecond)
	if answer.Signal != 0 {
		signal.Reset()
		check(syscall.Kill(os.Getpid(), syscall.Signal(answer.Signal)))
		time.Sleep(time.Minute)
	}
	os.Exit(answer.Exit)
}

func read(path string) *reply {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	check(err)
	var answer reply
	check(json.Unmarshal(text, &answer))
	return &answer
}

// note writes the first file that is not there yet: one call of a plugin may lie within another.
func note(dir string, c call) {
	text, err := json.Marshal(c)
	check(err)
	for n := 1; ; n++ {
		path := filepath.Join(dir, fmt.Sprintf("%04d", n))
		file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		check(err)
		_, err = file.Write(text)
		check(err)
		check(file.Close())
		return
	}
}

func environment() map[string]string {
	env := map[string]string{}
	for _, variable := range os.Environ() {
		name, value, _ := strings.Cut(variable, "=")
		env[name] = value
	}
	return env
}

// feed makes the bytes standard input again.
func feed(input []byte) {
	file, err := os.CreateTemp("", "recorder")
	check(err)
	check(os.Remove(file.Name()))
	_, err = file.Write(input)
	check(err)
	_, err = file.Seek(0, io.SeekStart)
	check(err)
	check(syscall.Dup3(int(file.Fd()), 0, 0))
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func check(err error) {
	if err != nil {
		log.Fatal("recorder: ", err)
	}
}
