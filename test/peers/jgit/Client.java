// JGit as a client: clones, pushes to the branches that are named, fetches again, and says what it was answered. URL DIRECTORY PASSWORD REF...
import java.io.File;
import java.nio.file.Files;
import org.eclipse.jgit.api.Git;
import org.eclipse.jgit.transport.CredentialsProvider;
import org.eclipse.jgit.transport.PushResult;
import org.eclipse.jgit.transport.RefSpec;
import org.eclipse.jgit.transport.RemoteRefUpdate;
import org.eclipse.jgit.transport.TrackingRefUpdate;
import org.eclipse.jgit.transport.UsernamePasswordCredentialsProvider;

public class Client {
    public static void main(String[] args) throws Exception {
        File directory = new File(args[1]);
        CredentialsProvider who = new UsernamePasswordCredentialsProvider("x", args[2]);
        Git git = Git.cloneRepository().setURI(args[0]).setDirectory(directory).setCredentialsProvider(who).call();
        Files.write(directory.toPath().resolve("file"), "two\n".getBytes("UTF-8"));
        git.add().addFilepattern("file").call();
        String made = git.commit().setMessage("two").setAuthor("a", "a@b").setCommitter("a", "a@b").call().name();
        System.out.println("made " + made);
        for (int at = 3; at < args.length; at++) {
            RefSpec spec = new RefSpec("HEAD:" + args[at]);
            for (PushResult result : git.push().setCredentialsProvider(who).setRefSpecs(spec).call())
                for (RemoteRefUpdate update : result.getRemoteUpdates())
                    System.out.println("answer " + args[at] + " " + update.getStatus() + " " + update.getMessage());
        }
        RefSpec all = new RefSpec("+refs/heads/*:refs/fetched/*");
        for (TrackingRefUpdate update : git.fetch().setCredentialsProvider(who).setRefSpecs(all).call().getTrackingRefUpdates())
            System.out.println("fetched " + update.getRemoteName() + " " + update.getNewObjectId().name());
        git.close();
    }
}
